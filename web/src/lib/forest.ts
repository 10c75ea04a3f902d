// The runs of one tree and the tree of their tokens. Events and whole runs may be added in any order and more than
// once; nothing is ever removed.

import type { Beam, Frame, PromptToken, Refusal, Summary, Token, TreeEvent, WholeRun } from './types';

export interface Run {
  readonly summary: Summary;
  readonly tokens: Token[];
  readonly end: Token | null; // the token that ended it, where that is no part of the text
  readonly tail: string;
  readonly beams: Beam[];
  readonly prompt: PromptToken[];
  readonly frames: readonly Frame[]; // of a text that is filled in passes: after each pass, as far as they are here
}

/** A node of the tree of tokens. Runs with the same beginning share nodes. */
export interface Place {
  readonly node: string;
  readonly parent: string | null;
  readonly depth: number; // 0 is the prompt
  readonly children: Place[]; // in the order of arrival
  run: string; // the first run with this token
  id: number;
  piece: string;
  source: string;
  raw: number | null; // the model's own log-probability, if it is known
  refused: Refusal | null;
  beam: Beam | null;
  path: number; // of the last drawing that had it on the selected run
  end: number; // of the last drawing that had the end of a run or a beam here
  kept: boolean; // whether it is in the text of a run; then it is not drawn as pruned, even if a beam was pruned here
}

export class Forest {
  readonly runs = new Map<string, Run>();
  readonly places = new Map<string, Place>();
  readonly roots: string[] = [];

  /** Applies an event. Returns false if an earlier one is missing: then the whole run must be fetched. */
  apply(event: TreeEvent): boolean {
    if (event.kind === 'pass') return this.filled(event.run, [event.frame]);
    if (event.kind !== 'token') {
      const run = this.tell(event.summary);
      return run.tokens.length >= (event.summary.fork_at ?? 0);
    }
    const run = this.runs.get(event.run);
    if (!run || event.token.index > run.tokens.length) return false;
    this.put(run, event.token);
    this.runs.set(event.run, { ...run });
    return true;
  }

  /** Adds or updates a run by its summary. A fork has the tokens that it shares with its parent. */
  tell(summary: Summary): Run {
    const known = this.runs.get(summary.id);
    const tokens = known && known.tokens.length >= (summary.fork_at ?? 0) ? known.tokens : this.kept(summary);
    const run = known ? { ...known, summary, tokens } : { summary, tokens, end: null, tail: '', beams: [], prompt: this.promptOf(summary), frames: [] };
    this.runs.set(summary.id, run);
    this.root(summary);
    for (const token of run.tokens) this.place(run, token);
    return run;
  }

  /** Adds a whole run, or one without the tokens that are here. A known token is replaced only by one with more
   *  alternatives. */
  whole(told: WholeRun): Run {
    const { prompt_tokens, tokens, tail, end, beams, ...summary } = told;
    const known = this.tell(summary);
    for (const token of tokens) {
      const here = known.tokens[token.index];
      if (!here || here.alternatives.length < token.alternatives.length) this.put(known, token);
    }
    const run = { ...known, prompt: prompt_tokens, tail, end: end ?? known.end, beams };
    this.runs.set(summary.id, run);
    for (const beam of beams) this.beam(run, beam);
    return run;
  }

  /** Adds frames in their order, each once. Returns false if one before them is missing. */
  filled(id: string, frames: readonly Frame[]): boolean {
    const run = this.runs.get(id);
    if (!run) return false;
    const next = frames.filter(({ pass }) => pass >= run.frames.length);
    if (next.length && next[0]!.pass > run.frames.length) return false;
    if (next.length) this.runs.set(id, { ...run, frames: [...run.frames, ...next] });
    return true;
  }

  /** The number of runs that are being generated. */
  get live(): number {
    let count = 0;
    for (const run of this.runs.values()) if (isLive(run)) count++;
    return count;
  }

  /** Returns how many tokens two runs share at their beginning. */
  shared(one: Run, other: Run): number {
    const most = Math.min(one.tokens.length, other.tokens.length);
    for (let i = 0; i < most; i++) if (one.tokens[i] !== other.tokens[i] && one.tokens[i]!.node !== other.tokens[i]!.node) return i;
    return one.summary.root === other.summary.root ? most : 0;
  }

  private kept(summary: Summary): Token[] {
    const parent = summary.parent === null ? undefined : this.runs.get(summary.parent);
    return parent ? parent.tokens.slice(0, summary.fork_at ?? 0) : [];
  }

  private promptOf(summary: Summary): PromptToken[] {
    for (const run of this.runs.values()) if (run.summary.root === summary.root && run.prompt.length) return run.prompt;
    return [];
  }

  private put(run: Run, token: Token): void {
    run.tokens[token.index] = token;
    this.place(run, token);
  }

  private root(summary: Summary): void {
    if (this.places.has(summary.root)) return;
    this.roots.push(summary.root);
    this.places.set(summary.root, { node: summary.root, parent: null, depth: 0, children: [], run: summary.id, id: -1, piece: '', source: 'prompt', raw: null, refused: null, beam: null, path: 0, end: 0, kept: true });
  }

  private place(run: Run, token: Token): void {
    const place = this.add(token.node, token.parent, run.summary.id, token.id, token.piece, token.source, token.refused);
    if (!place) return;
    place.kept = true;
    place.raw = token.raw_logprob;
  }

  private beam(run: Run, beam: Beam): void {
    const place = this.add(beam.node, beam.parent_node, run.summary.id, beam.id, beam.piece, 'beam', null);
    if (place) place.beam = beam;
  }

  private add(node: string, parent: string, run: string, id: number, piece: string, source: string, refused: Refusal | null): Place | undefined {
    const known = this.places.get(node);
    const above = this.places.get(parent);
    if (known || !above) return known;
    const made: Place = { node, parent, depth: above.depth + 1, children: [], run, id, piece, source, raw: null, refused, beam: null, path: 0, end: 0, kept: false };
    above.children.push(made);
    this.places.set(node, made);
    return made;
  }
}

/** Returns whether a beam was pruned here and no run has this token. */
export const isPruned = (place: Place | null): boolean => place?.beam?.fate === 'pruned' && !place.kept;

export const isLive = (run: Pick<Run, 'summary'> | null): boolean => run !== null && (run.summary.status === 'running' || run.summary.status === 'waiting');

/** Returns a short name for a run. */
export function nameOf(run: Pick<Run, 'summary'>): string {
  const { name, reason, seed, sample, sampling, diffusion } = run.summary;
  if (name) return name;
  if (diffusion) return `diffusion, seed ${seed}`;
  if (reason === 'forced') return 'fork';
  if (reason === 'edited') return 'edit';
  if (reason === 'sampled') return 'new luck';
  if (Number(sampling['beam_width']) > 1) return `${String(sampling['beam_width'])} beams`;
  if (Number(sampling['n']) > 1) return `seed ${seed}, sample ${sample + 1}`;
  return sampling['temperature'] === 0 ? 'greedy' : `seed ${seed}`;
}
