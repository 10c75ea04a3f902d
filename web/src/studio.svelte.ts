// The page's state: which tree is open, which run and token are shown, what plays. It talks to the server through
// the feed; the parts of the page read from here and call the actions of the user.

import { tick } from 'svelte';
import { Address } from './lib/address';
import { api, ApiError, onSlow, type ForkBody } from './lib/api';
import { asksSame, hasLuck, NO_LUCK, seeds, type Question } from './lib/asking';
import { LIMITS, messagesOf, partsOf, plain } from './lib/chat';
import { Feed } from './lib/feed';
import { isLive, type Forest, type Run } from './lib/forest';
import { percent } from './lib/format';
import { uncertain } from './lib/heat';
import type { LensName } from './lib/lenses';
import { fromHash, recipeOf, toHash, type Recipe } from './lib/link';
import { read, STRATEGIES } from './lib/options';
import { Pace, TABLES, TREE } from './lib/pace';
import { save } from './lib/save';
import { suggest } from './lib/suggest';
import { spoken } from './lib/visible';
import type { Cell, Info, Message, Option, Options, StartBody, Summary, Token, TreeEvent } from './lib/types';
import { FieldErrors } from './fields.svelte';
import { panels } from './panels.svelte';
import { PassReason } from './filling.svelte';
import { Playback } from './playback.svelte';
import { Voice } from './voice.svelte';

export interface Notice {
  kind: 'error' | 'info';
  text: string;
  action?: { label: string; run: () => unknown };
}

export const DEMO = { prompt: 'The capital of France is', sampling: { temperature: 0.8, seed: 16, max_tokens: 24, logprobs: 20 } };

const MOST_EXPLAINED = 100; // tokens of a page; each takes some hundredths of a second

class Studio {
  info = $state.raw<Info | null>(null);
  connection = $state<'starting' | 'live' | 'away' | 'lost'>('starting');
  slow = $state(false); // an answer of the server takes long
  notice = $state.raw<Notice | null>(null);

  // What will be asked.
  mode = $state<'text' | 'chat'>('text');
  newTree = $state(false); // also for the prompt of the tree that is open
  prompt = $state(DEMO.prompt);
  conversation = $state<Message[]>([]); // the turns before the one that is written now
  system = $state('');
  sampling = $state.raw<Options>({ max_tokens: LIMITS.text, logprobs: 20 }); // the others have the server's defaults

  // What is here.
  version = $state(0); // of what is drawn of the tree
  tables = $state(0); // of what is in tables: they wait longer
  private frame = $state(0); // of the text: it never waits
  tree = $state<string | null>(null);
  runId = $state<string | null>(null);
  busy = $state(false);
  saving = $state(false); // a page of the run is made

  // What is shown of it.
  pin = $state<number | null>(null);
  selections = $state(0); // counts them: the same token may be selected again to be brought into sight
  hover = $state<number | null>(null);
  choice = $state<number | null>(null); // the id of an alternative at the pinned token
  lens = $state<LensName>('Compare');
  caption = $state(false);
  dialog = $state<'help' | 'settings' | 'edit' | 'share' | 'runs' | null>(null);
  tour = $state<number | null>(null);

  readonly fields = new FieldErrors();
  readonly voice = new Voice();
  readonly reason = new PassReason();
  private playback = new Playback();
  private feed = new Feed({
    came: (events) => this.came(events),
    connected: () => this.connected(),
    away: () => this.wentAway(),
    lost: (error) => this.lost(error),
    failed: (error) => this.fail(error),
  });

  run = $derived.by<Run | null>(() => {
    void this.version;
    return this.runId === null ? null : (this.forest.runs.get(this.runId) ?? null);
  });
  /** The same run with what has come since the tree was drawn. */
  written = $derived.by<Run | null>(() => {
    void this.frame;
    return this.run && (this.forest.runs.get(this.run.summary.id) ?? null);
  });
  live = $derived(isLive(this.run));
  count = $derived(this.run?.tokens.length ?? 0);
  shownCount = $derived(this.playback.shown(this.count));
  /** A fork that the page suggests for a run that has ended. */
  suggestion = $derived.by(() => (this.run && !this.live && this.run.summary.status !== 'paused' && !this.playing && this.head === null ? suggest(this.run.tokens) : null));
  /** The token the tree and the panel are about. */
  focus = $derived.by<number | null>(() => {
    if (this.pin !== null && this.pin < this.count + (this.run?.end ? 1 : 0)) return this.pin;
    if (this.live || this.playing || this.head !== null) return this.shownCount ? this.shownCount - 1 : null;
    return this.suggestion?.index ?? (this.count ? this.count - 1 : null);
  });
  focusToken = $derived(this.tokenAt(this.focus));

  private paces = [new Pace(TREE, () => this.version++), new Pace(TABLES, () => this.tables++)];
  private address = new Address(window);
  readonly made = new Set<string>(); // trees that were started on this page
  private asked = new Map<string, Message[]>(); // by root, where the server may not know them
  private opening = 0; // counts what is opened: the answer to an earlier request comes too late
  private replacing = false; // what is opened takes the place of what the address names

  get forest(): Forest {
    return this.feed.forest;
  }
  get head(): number | null {
    return this.playback.head;
  }
  get playing(): boolean {
    return this.playback.playing;
  }

  tokenAt(index: number | null): Token | null {
    if (index === null || !this.run) return null;
    return this.run.tokens[index] ?? (index === this.count ? this.run.end : null);
  }

  // ── beginning ─────────────────────────────────────────────────────────────────────────────────────────────

  async boot(): Promise<void> {
    onSlow((slow) => (this.slow = slow));
    for (;;) {
      try {
        this.info = await api.info();
        break;
      } catch (error) {
        this.connection = 'away';
        this.fail(error, 'The server cannot be reached. Trying again …');
        if (!(error instanceof ApiError) || !error.gone) return;
        await new Promise((resolve) => setTimeout(resolve, 1500));
      }
    }
    this.notice = null;
    this.connection = 'live';
    await this.openLink();
  }

  /** Opens a short run of this server, played once. */
  private async first(): Promise<void> {
    const opening = ++this.opening;
    const same = (run: Summary): boolean =>
      run.model === this.info?.model && run.prompt === DEMO.prompt && run.parent === null && run.status === 'done' && Object.entries(DEMO.sampling).every(([name, value]) => run.sampling[name] === value);
    const { runs } = await api.runs({ search: DEMO.prompt, limit: 100 });
    const made = runs.find((run) => same(run) && runs.filter((each) => each.tree === run.tree).length === 1);
    if (opening !== this.opening) return;
    const summary = made ?? (await api.start(DEMO))[0]!;
    if (opening !== this.opening) return;
    this.playback.head = 0;
    if (!(await this.open(summary.tree, summary.id))) return;
    this.caption = true;
    this.replay();
  }

  /** Opens what the address names: a run of this server, or one that is made again from the link. */
  async openLink(): Promise<void> {
    this.address.settle();
    const { run, at, recipe } = fromHash(location.hash);
    if (run === null && recipe === null) return this.guard(() => this.first());
    const opening = ++this.opening;
    if (run !== null && this.forest.runs.has(run)) return this.select(run, at);
    this.touch();
    try {
      if (run === null) throw new ApiError(404, '');
      const found = await this.named(run);
      if (opening !== this.opening) return;
      if (recipe?.messages) this.asked.set(found.root, recipe.messages);
      if (found.id === run) await this.open(found.tree, found.id, at);
      else await this.replace(() => this.open(found.tree, found.id, at)); // the address had the beginning of its id
    } catch (error) {
      if (opening !== this.opening) return;
      if (!(error instanceof ApiError && error.expired)) return this.fail(error);
      if (!recipe) return this.tellUnknown(run!);
      await this.guard(() => this.make(recipe));
      this.pin = at;
    }
  }

  /** Returns the run with this id, or the only one whose id begins with it. */
  private async named(id: string): Promise<Summary> {
    try {
      return await api.run(id, 0);
    } catch (error) {
      if (!(error instanceof ApiError && error.expired) || !/^[0-9a-f]{4,15}$/.test(id)) throw error;
      const begun = (await api.runs({ search: id, limit: 100 })).runs.filter((run) => run.id.startsWith(id));
      if (begun.length !== 1) throw error;
      return begun[0]!;
    }
  }

  /** Keeps the address and the title of the page at the run and the token that are shown. */
  nameAddress(): void {
    const [id, pin] = [this.runId, this.pin];
    const summary = id === null ? undefined : this.forest.runs.get(id)?.summary;
    if (!summary) return; // another tree is being opened
    this.address.name(summary.id, pin, this.replacing);
    document.title = `${spoken(summary.title)} · glassloop`;
  }

  /** Makes a run again: the same prompt, options and seed give the same tokens. */
  async make(recipe: Recipe): Promise<void> {
    const { turns, ...body } = recipe;
    await this.replace(async () => {
      let [summary] = await this.start(body);
      for (const { at, text, ...turn } of turns) {
        await this.feed.ended(summary!.id);
        [summary] = text === undefined ? await this.fork(summary!.id, { at, ...turn }) : await this.edit(summary!.id, at, text);
      }
    });
    this.sampling = { ...this.sampling, ...recipe.sampling };
  }

  /** Opens something else in the place of what the address names, which is not there any more: Back passes it by. */
  private async replace(work: () => Promise<unknown>): Promise<void> {
    this.replacing = true;
    try {
      await work();
      await tick(); // the address names it now
    } finally {
      this.replacing = false;
    }
  }

  // ── the tree that is open ─────────────────────────────────────────────────────────────────────────────────

  /** Opens a run of a tree and returns true, or false if something else was opened meanwhile. */
  async open(tree: string, run: string, at: number | null = null): Promise<boolean> {
    const opening = ++this.opening;
    this.pin = this.hover = this.choice = null;
    this.reason.clear();
    this.tree = tree;
    await this.feed.open(tree);
    if (opening !== this.opening) return false;
    this.runId = run;
    this.pin = at;
    this.draw();
    this.restore();
    return true;
  }

  /** Opens a run in the place of one that is about to be removed, or the first page if it is not there. */
  async leaveFor(tree: string | null, run: string | null, at: number | null): Promise<void> {
    this.touch();
    const there = tree === null || run === null ? null : await api.run(run, 0).catch(() => null);
    await this.replace(() => (there ? this.open(there.tree, there.id, at) : this.first()));
  }

  /** The messages of a run, or null if it continues a text. */
  messagesOf(run: Run): Message[] | null {
    return run.summary.messages ? plain(run.summary.messages) : (this.asked.get(run.summary.root) ?? null);
  }

  /** Shows what the run was asked in the prompt box: its text, or its conversation with an empty box for the next
   *  message. */
  private restore(): void {
    if (!this.run) return;
    const messages = this.info?.chat ? this.messagesOf(this.run) : null;
    this.setMode(messages ? 'chat' : 'text');
    const { system, turns } = partsOf(messages ?? []);
    if (messages) this.system = system;
    this.conversation = turns;
    this.prompt = messages ? '' : this.run.summary.prompt;
  }

  setMode(mode: 'text' | 'chat'): void {
    if (this.sampling['max_tokens'] === LIMITS[this.mode]) this.sampling = { ...this.sampling, max_tokens: LIMITS[mode] };
    this.mode = mode;
  }

  /** The text shows what has come with this frame, the rest when it is time. */
  private came(events: readonly TreeEvent[]): void {
    for (const event of events) if (event.run === this.runId && (event.kind === 'end' || this.head === null)) this.voice.read(event);
    this.frame++;
    const { live } = this.forest;
    for (const pace of this.paces) pace.ask(live);
  }

  /** Shows the result of an action on all of the page at once. */
  private draw(): void {
    for (const pace of this.paces) pace.go();
  }

  private connected(): void {
    if (this.connection === 'away' || this.connection === 'lost') this.notice = null;
    this.connection = 'live';
  }

  private wentAway(): void {
    this.connection = 'away';
    this.notice = { kind: 'error', text: 'The server has gone away. The page stays as it is; trying to reconnect …' };
  }

  private lost(error: ApiError): void {
    this.connection = 'lost';
    if (error.expired) this.tellExpired(this.run);
    else this.fail(error);
  }

  select(run: string, index: number | null = null): void {
    if (!this.forest.runs.has(run)) return;
    this.touch();
    const root = this.run?.summary.root;
    this.selections++;
    this.runId = run;
    this.pin = index;
    this.choice = null;
    this.reason.clear();
    if (this.run?.summary.root !== root) this.restore();
  }

  // ── asking ────────────────────────────────────────────────────────────────────────────────────────────────

  /** What the prompt box asks: the text, or the conversation with the new message. */
  get question(): Question {
    return this.mode === 'text' ? { prompt: this.prompt } : { messages: messagesOf(this.system, this.conversation, this.run?.summary.text ?? null, this.prompt) };
  }

  /** Whether there is something to ask: in a conversation the last message can be asked again. */
  canAsk = $derived(!this.busy && (this.mode === 'text' ? this.prompt !== '' : this.prompt.trim() !== '' || this.conversation.at(-1)?.role === 'user'));

  /** The tree that is open, if it has this very question: then another run of it is a branch of that tree. */
  sameTree = $derived.by<string | null>(() => {
    if (!this.run || this.connection !== 'live' || this.run.summary.model !== this.info?.model) return null;
    return asksSame(this.question, this.run.summary.prompt, this.messagesOf(this.run)) ? this.run.summary.tree : null;
  });

  /** Starts what the prompt box asks, as a branch of the open tree if that has the same question. */
  ask(more: Partial<StartBody> = {}): Promise<void> {
    return this.guard(() => {
      this.fields.check();
      return this.startQuestion(more);
    });
  }

  async startQuestion(more: Partial<StartBody>): Promise<void> {
    const tree = this.newTree ? null : this.sameTree;
    await this.start({ ...this.question, sampling: this.sampling, ...more, ...(tree === null ? {} : { tree }) });
    this.newTree = false;
    if (this.mode === 'chat') this.restore();
  }

  /** Starts it once for each seed from 1 to `count`. */
  async askSeeds(count: number): Promise<void> {
    await this.ask(seeds(count, this.sampling));
    this.look('Compare');
  }

  forget(): void {
    this.conversation = [];
    this.prompt = '';
  }

  async start(body: StartBody): Promise<Summary[]> {
    this.touch();
    this.busy = true;
    try {
      const runs = await api.start(body);
      this.made.add(runs[0]!.tree);
      if (body.messages) this.asked.set(runs[0]!.root, body.messages);
      if (body.tree !== undefined && body.tree === this.tree) for (const run of runs) this.forest.tell(run);
      else if (!(await this.open(runs[0]!.tree, runs[0]!.id))) return runs;
      for (const run of runs) if (!this.forest.runs.get(run.id)?.prompt.length) void this.feed.details(run.id);
      this.runId = runs[0]!.id;
      this.pin = this.choice = null;
      this.draw();
      return runs;
    } finally {
      this.busy = false;
    }
  }

  compare(names: readonly string[]): Promise<void> {
    const strategies = STRATEGIES.filter((each) => names.includes(each.name)).map(({ name, sampling }) => ({ name, sampling }));
    const { temperature: _, ...common } = this.sampling;
    const sampling = { ...common, seed: this.run?.summary.seed ?? common['seed'] };
    this.look('Compare');
    return this.ask({ sampling, strategies });
  }

  async fork(run: string, body: ForkBody): Promise<Summary[]> {
    this.touch();
    const runs = await api.fork(run, body);
    for (const summary of runs) this.forest.tell(summary);
    this.runId = runs[0]!.id;
    this.pin = body.at;
    this.choice = null;
    this.draw();
    return runs;
  }

  /** Continues from here with the chosen alternative, or with new luck. */
  forkHere(token: number | null = this.choice, at: number | null = this.focus): Promise<void> {
    return this.guard(async () => {
      if (!this.run || at === null) return;
      if (token === null && !this.lucky) return void (this.notice = { kind: 'info', text: `${NO_LUCK}. Choose an alternative (↓, then Enter), or change the temperature under “What if”.` });
      const was = this.tokenAt(at);
      await this.fork(this.run.summary.id, token === null ? { at } : { at, token });
      const other = was?.alternatives.find((each) => each.id === token);
      this.voice.say(other && was ? `New branch: “${spoken(other.text)}” in place of “${spoken(was.piece)}”.` : 'New branch, with new luck.');
    });
  }

  async edit(run: string, at: number, text: string): Promise<Summary[]> {
    this.touch();
    const runs = await api.edit(run, at, text);
    for (const summary of runs) this.forest.tell(summary);
    this.runId = runs[0]!.id;
    this.pin = at;
    this.draw();
    this.voice.say(`New branch: the text is now “${spoken(text)}” there.`);
    return runs;
  }

  // ── playing ───────────────────────────────────────────────────────────────────────────────────────────────

  play(): Promise<void> {
    return this.guard(async () => {
      if (this.playing) return this.playback.pause();
      if (!this.run) return this.ask();
      if (this.live) return void this.forest.tell(await api.stop(this.run.summary.id));
      if (this.head !== null && this.head < this.count) return this.replay(this.head);
      if (this.run.summary.status === 'paused') return this.goOn(null);
      return this.replay();
    });
  }

  step(): Promise<void> {
    return this.guard(async () => {
      if (!this.run) return this.ask({ pause_after: 1 });
      this.playback.pause();
      if (this.live) return void this.forest.tell(await api.stop(this.run.summary.id));
      if (this.playback.step(this.count)) return;
      if (this.run.summary.status === 'paused') return this.goOn(1);
      this.notice = { kind: 'info', text: 'This run has ended. Click an alternative, or press Enter for new luck, to continue from a token.' };
    });
  }

  private async goOn(tokens: number | null): Promise<void> {
    this.pin = this.choice = null;
    this.forest.tell(await api.step(this.run!.summary.id, tokens));
    this.draw();
  }

  rewind(to: number | null = null): void {
    if (!this.run) return;
    this.playback.pause();
    this.playback.head = Math.max(0, to ?? (this.head ?? this.count) - 1);
    this.pin = this.choice = null;
  }

  private replay(from = 0): void {
    this.pin = this.choice = null;
    this.playback.play(from, () => this.count, () => this.live);
  }

  /** Ends what plays by itself, since the user does something. */
  touch(): void {
    this.playback.end();
    this.caption = false;
    this.notice = this.connection === 'live' ? null : this.notice;
    this.voice.begin();
  }

  // ── looking ───────────────────────────────────────────────────────────────────────────────────────────────

  /** Fetches the passes of a run that are not here yet. */
  passesOf(run: string): Promise<void> {
    return this.feed.passes(run);
  }

  /** Shows why a place of a text that is filled in passes got its token in one of them. */
  pinPlace(place: number, pass: number, { text, entropy }: Cell): void {
    if (!this.run) return;
    this.playback.end();
    this.pin = place < this.count ? place : null;
    this.choice = null;
    void this.reason.ask({ run: this.run.summary.id, place, pass, piece: text, entropy }).then(() => this.reason.told && this.voice.say(this.reason.told.sentence));
  }

  /** Whether the tokens of the run were drawn with luck. */
  lucky = $derived(hasLuck(this.run?.summary.sampling ?? {}, this.info?.options ?? []));
  /** Whether a run can be forked: one that was filled in passes cannot. */
  forks = $derived(!this.run?.summary.diffusion);

  /** Whether the server gives what a lens needs. */
  offers(name: LensName): boolean {
    if (name === 'Filling') return this.info?.diffusion?.available === true;
    if (name === 'Training') return this.info?.training === true;
    return name !== 'Inside' || Boolean(this.info?.lenses.length);
  }

  /** Opens a lens, and its panel where that is collapsed. */
  look(name: LensName): void {
    this.lens = name;
    panels.reveal('lens');
  }

  pinAt(index: number | null): void {
    if (index !== null && (index < 0 || index > this.last)) return;
    this.playback.pause();
    this.caption = false;
    if (this.head !== null && index !== null && index >= this.head) this.playback.end();
    this.selections++;
    this.pin = index;
    this.choice = null;
    this.reason.clear();
    const token = this.tokenAt(index);
    if (token) this.voice.say(`Token ${token.index}: “${spoken(token.piece, token.bytes)}”.`);
  }

  /** The last token that can be shown: the one that ended the run, where it is known. */
  get last(): number {
    return this.count - (this.run?.end ? 0 : 1);
  }

  move(by: number): void {
    this.pinAt(Math.min(this.last, Math.max(0, (this.focus ?? 0) + by)));
  }

  uncertain(direction: 1 | -1): void {
    const found = uncertain(this.run?.tokens.map((token) => token.entropy) ?? [], this.focus ?? -1, direction);
    if (found === null) this.voice.say('There is no other token where the model was uncertain.');
    else this.pinAt(found);
  }

  /** Moves up or down the alternatives of the token that is shown. */
  choose(by: number): void {
    const token = this.focusToken;
    if (!token) return;
    if (this.pin === null) this.pin = this.focus;
    const others = token.alternatives.filter((each) => each.id !== token.id);
    const at = others.findIndex((each) => each.id === this.choice) + by;
    this.choice = at < 0 ? null : (others[Math.min(at, others.length - 1)]?.id ?? null);
    const chosen = others.find((each) => each.id === this.choice);
    this.voice.say(chosen ? `Alternative: “${spoken(chosen.text)}”, ${percent(chosen.raw_logprob)}. Enter forks.` : `“${spoken(token.piece)}”, the one that was chosen.`);
  }

  // ── links and files ───────────────────────────────────────────────────────────────────────────────────────

  share(): string {
    if (!this.run || !this.info) return location.href;
    const recipe = recipeOf(this.run, this.forest.runs, this.info.options, this.messagesOf(this.run) ?? undefined);
    return `${location.origin}${location.pathname}${toHash({ run: this.run.summary.id, at: this.pin, recipe })}`;
  }

  again(): Promise<void> {
    return this.guard(async () => {
      if (!this.run || !this.info) return this.ask();
      const recipe = recipeOf(this.run, this.forest.runs, this.info.options, this.messagesOf(this.run) ?? undefined);
      if (recipe) await this.make(recipe);
    });
  }

  /** Opens the run of a file, or the same run if it is here already. */
  async importFile(file: Blob): Promise<void> {
    await this.guard(async () => {
      const [run] = await api.import(file);
      this.touch();
      if (run) await this.open(run.tree, run.id);
    });
  }

  /** Removes a run for good. If it is shown, another run of its tree is shown instead, or the first page. */
  async remove(run: Summary): Promise<void> {
    await api.remove(run.id);
    if (run.tree !== this.tree) return;
    this.feed.close();
    const left = await api.tree(run.tree);
    const next = left.find((each) => each.id === this.runId) ?? left[0];
    await this.replace(() => (next ? this.open(next.tree, next.id) : this.first()));
  }

  async exportFile(): Promise<void> {
    await this.guard(async () => {
      if (this.run) await save(api.exportAddress(this.run.summary.id), `${this.run.summary.id}.glass`);
    });
  }

  /** Saves the run as a page that opens anywhere, with the explanations of its tokens; of a long run, of the one that
   *  is shown. */
  async exportPage(): Promise<void> {
    this.saving = true;
    await this.guard(async () => {
      if (this.run) await save(api.pageAddress(this.run.summary.id, this.count <= MOST_EXPLAINED ? 'all' : (this.focus ?? 0)), `${this.run.summary.id}.html`);
    });
    this.saving = false;
  }

  // ── what went wrong ───────────────────────────────────────────────────────────────────────────────────────

  async guard(work: () => unknown): Promise<void> {
    try {
      await work();
    } catch (error) {
      this.fail(error);
    }
  }

  fail(error: unknown, instead?: string): void {
    if (error instanceof ApiError && error.expired && error.code !== null && /^no_such/.test(error.code)) return this.tellExpired(this.run);
    const text = instead ?? (error instanceof Error ? error.message : String(error));
    const field = this.fields.noted(error);
    const inSettings = this.dialog === null && field !== null && field !== 'seed' && this.info?.options.some((each) => each.name === field);
    this.notice = { kind: 'error', text, ...(inSettings ? { action: { label: 'Open settings', run: () => (this.dialog = 'settings') } } : {}) };
  }

  /** Tells that a run which is on the page is no longer on the server. */
  private tellExpired(run: Run | null): void {
    const text = 'The server no longer has this run: it was removed, or the server was restarted without a store.';
    this.notice = run ? { kind: 'error', text: `${text} The same prompt, options and seed give the same tokens.`, action: { label: 'Make it again', run: () => this.again() } } : { kind: 'error', text };
  }

  /** Tells that the run which the address names is not on the server, which cannot know whether it ever was. */
  private tellUnknown(run: string): void {
    const text = `This server has no run “${run}”: it was made elsewhere or with another key, it was removed, or the id is not complete.`;
    this.notice = { kind: 'error', text, action: { label: 'Start a new one', run: () => this.guard(() => this.replace(() => this.first())) } };
  }

  /** Take over what is written in a field of the settings, or note what is wrong with it. */
  setOption(option: Option, text: string | boolean): void {
    try {
      const value = read(option, text);
      const { [option.name]: _, ...kept } = this.sampling;
      this.sampling = value === undefined ? kept : { ...kept, [option.name]: value };
      this.fields.clear(option.name);
    } catch (error) {
      this.fields.set(option.name, String(text), (error as Error).message);
    }
  }
}

export const studio = new Studio();
