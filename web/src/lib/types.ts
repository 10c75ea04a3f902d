// The shapes of the server's answers, as in docs/server.md.

export interface Alternative {
  id: number;
  text: string;
  logprob: number | null; // after the stages; null: a stage removed it
  raw_logprob: number | null; // the model's own
}

export type Source = 'sampled' | 'forced' | 'draft' | 'beam' | 'mask'; // mask: filled in a pass

/** A rejected draft: another token was chosen there. */
export interface Refusal {
  id: number;
  text: string;
  by: 'lookup' | 'model' | 'masks'; // model: also a drafter that was trained for the model
  dropped: number; // drafts after it, which were dropped unchecked
}

export interface Token {
  index: number;
  node: string;
  parent: string;
  id: number;
  piece: string;
  bytes: string;
  text: string;
  logprob: number | null;
  raw_logprob: number | null;
  // Of another engine's tokens, these and `logprob` are NaN: not known.
  rank: number;
  rank_after: number;
  entropy: number;
  log_sum_exp: number;
  luck: number;
  margin: number | null;
  runner_up: number | null;
  source: Source;
  seconds: number; // since the request arrived
  took: number; // seconds since the token before it
  refused: Refusal | null;
  alternatives: Alternative[];
}

export type Status = 'waiting' | 'running' | 'paused' | 'done' | 'failed' | 'elsewhere';
export type Options = Record<string, unknown>;

export interface Summary {
  id: string;
  tree: string;
  root: string;
  model: string;
  name: string | null;
  created: number;
  status: Status;
  finish_reason: string | null;
  stop_reason: string | null;
  error: string | null;
  prompt: string;
  messages: RecordedMessage[] | null; // of a conversation; null: a text is continued
  title: string; // in one line: the prompt, or the user's last message
  text: string;
  seed: number | bigint; // of up to 64 bits
  salt: number | bigint;
  sample: number;
  parent: string | null;
  fork_at: number | null;
  reason: 'sampled' | 'forced' | 'edited' | null;
  sampling: Options;
  logprob: number | null; // null: not known
  usage: Record<'prompt_tokens' | 'completion_tokens' | 'total_tokens' | 'cached_tokens' | 'context_left', number | null>; // null: not known
  timings: { queue: number; prefill: number; decode: number; preempted: number; tokens_per_second: number | null };
  distinct_pairs: number | null; // different pairs of neighbouring tokens, as a share of all
  drafts: { proposed: number; accepted: number; rejected: number; acceptance: number | null; seconds: number };
  ops: string;
  diffusion?: Options | null; // the options of a text that was filled in passes
  passes?: number;
  upstream?: { url: string; server: string; logprobs: boolean } | null; // the other engine that computed it
}

export interface PromptToken {
  id: number;
  piece: string;
  bytes: string;
  special: boolean;
}

export interface Beam {
  number: number;
  parent: number | null;
  id: number;
  piece: string;
  logprob: number;
  fate: 'live' | 'pruned' | 'finished' | 'chosen';
  node: string;
  parent_node: string;
}

export interface WholeRun extends Summary {
  prompt_tokens: PromptToken[];
  tokens: Token[];
  tail: string;
  end: Token | null;
  beams: Beam[];
}

export interface Change {
  id: number;
  text: string;
  before: number;
  after: number | null;
}

export interface StageReport {
  name: string;
  kind: 'bias' | 'scale' | 'mask';
  survivors_before: number;
  survivors: number;
  mass_kept: number;
  removed: Change[];
  moved: Change[];
  removed_count: number;
  moved_count: number;
}

export interface Candidate {
  id: number;
  text: string;
  rank: number;
  raw_logprob: number;
  logprob: number | null;
  rank_after: number | null;
  logit: number | null; // after the stages
  luck: number;
  score: number | null;
  removed_by: string | null;
  raw_logit?: number | null; // of the model, before the stages; null: not known
}

export interface Explanation {
  index: number;
  of: 'answer' | 'prompt';
  position: number;
  seed: number | bigint;
  salt: number | bigint;
  sampling: Options;
  actual: { id: number; text: string; source: Source | 'prompt' } | null;
  same: boolean | null;
  stages: StageReport[];
  candidates: Candidate[];
  others: { count: number; raw: number; after: number };
  winner: Candidate;
  runner_up: Candidate | null;
  margin: number | null;
  taken: Candidate;
  source: Source | 'prompt';
  beam: { rank: number; beams: number; result: number } | null;
  sentence: string;
  upstream?: string | null; // the other engine: only the log-probabilities that it gave are known
  difference?: RecordDifference | null; // where the record has other numbers than are computed now
}

/** The numbers of a choice, as the record has them or as they are computed now. */
export interface ChoiceNumbers {
  id: number;
  text: string;
  logprob: number | null;
  raw_logprob: number | null;
  rank: number | null;
  margin: number | null;
  luck: number | null;
}

export interface RecordDifference {
  recorded: ChoiceNumbers;
  now: ChoiceNumbers;
  fields: string[];
  sentence: string;
}

/** A token of one of the lists of `worst`. */
export interface WorstToken {
  index: number;
  id: number;
  piece: string;
  bytes: string;
  surprise_bits: number | null;
  logprob: number | null;
  raw_logprob: number | null;
  rank: number;
  rank_after: number;
  luck: number;
  source: Source;
}

export interface Worst {
  run: string;
  surprising: WorstToken[];
  lucky: WorstToken[];
}

export type Kind = 'number' | 'whole' | 'flag' | 'text' | 'texts' | 'ids' | 'biases' | 'schema' | 'stage_options';

export interface Option {
  name: string;
  kind: Kind;
  default: unknown;
  help: string;
}

export interface Info {
  model: string;
  version: string;
  ops: string;
  chat: boolean;
  upstream?: string | null; // the other engine that computes; what is null then is not known
  context: number | null;
  vocabulary: number | null;
  layers: number | null;
  dim: number | null;
  heads: number | null;
  kv: { memory: number; bytes: number; page_bytes: number; pages: number; capacity: number } | null;
  load: { waiting: number; running: number };
  options: Option[];
  stages: string[];
  lenses: string[];
  drafter?: 'lookup' | 'drafter' | 'model' | null; // what makes drafts; null: none does, or it is not known
  training: boolean; // whether it shows training runs
  diffusion?: { available: boolean; defaults: Options }; // whether the model fills masks
}

export interface Message {
  role: string; // system, user, assistant, …
  content: string;
}

/** A message as it was sent: its content may be in parts, or absent. */
export interface RecordedMessage {
  role: string;
  content?: string | { text: string }[] | null;
}

export interface Tokenized {
  count: number;
  tokens: number[];
  pieces: PromptToken[];
}

export interface StartBody {
  prompt?: string;
  messages?: Message[];
  sampling?: Options;
  diffusion?: Options; // the text is filled in passes
  strategies?: { name: string; sampling: Options }[];
  pause_after?: number;
  tree?: string;
}

export type TreeEvent =
  | { kind: 'run'; seq: number; run: string; summary: Summary }
  | { kind: 'end'; seq: number; run: string; summary: Summary }
  | { kind: 'token'; seq: number; run: string; token: Token }
  | { kind: 'pass'; seq: number; run: string; frame: Frame };

/** A block of a text after a pass over it. All places before the block are final. */
export interface Frame {
  pass: number; // of the run, from 0
  first: number; // the place in the answer where the block begins
  cells: Cell[];
}

/** A place of a block after a pass. */
export interface Cell {
  text: string | null; // null: it is masked
  id: number | null;
  changed: boolean; // filled by this pass, or taken back before it
  confidence: number | null; // the highest probability that the model gave any token when it was filled
  entropy: number | null;
  raw_logprob: number | null; // of the token
  logprob: number | null;
  pass: number | null; // in which it was filled
  taken_back: string | null; // the token that was taken back before this pass
  reason: string | null;
}

export interface Passes {
  run: string;
  diffusion: Options | null;
  passes: number;
  frames: Frame[];
  more: boolean;
}

// The lenses, where the server offers them. Places count over the prompt and the answer, from 0.

interface Seen {
  token: number;
  tokens: { id: number; text: string }[]; // up to this one
}

export interface AttentionLens extends Seen {
  mean: number[]; // of all layers and heads
  elsewhere: number[]; // the same without the first token, normalized
  layers: { layer: number; weights: number[][] }[]; // [heads][tokens]
}

export interface LayersLens extends Seen {
  follows: { id: number; text: string; given: boolean };
  layers: { layer: number; top: { id: number; text: string; logprob: number }[]; entropy: number; rank: number; logprob: number }[];
}

export interface NeighboursLens {
  of: { id: number; text: string }[];
  neighbours: { id: number; text: string; cosine: number }[];
}
