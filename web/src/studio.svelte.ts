// The page's state: which tree is open, which run and token are looked at, what plays. It talks to the server
// through the feed; the parts of the page read from here and call what people can do.

import { api, ApiError, type ForkBody } from './lib/api';
import { messagesOf } from './lib/chat';
import { Feed } from './lib/feed';
import { isLive, type Forest, type Run } from './lib/forest';
import { uncertain } from './lib/heat';
import { fromHash, recipeOf, toHash, type Recipe } from './lib/link';
import { changed, read, STRATEGIES } from './lib/options';
import { Pace, TABLES, TREE } from './lib/pace';
import { save } from './lib/save';
import { suggest } from './lib/suggest';
import { spoken } from './lib/visible';
import type { Info, Message, Option, Options, StartBody, Summary, Token, TreeEvent } from './lib/types';
import { FieldErrors } from './fields.svelte';
import { Playback } from './playback.svelte';
import { Voice } from './voice.svelte';

export interface Notice {
  kind: 'error' | 'info';
  text: string;
  action?: { label: string; run: () => unknown };
}

export const DEMO = { prompt: 'The capital of France is', sampling: { temperature: 0.8, seed: 16, max_tokens: 24, logprobs: 20 } };
export const LENSES = ['Compare', 'Beam', 'Drafts', 'Tokens', 'Cache & time', 'Inside', 'Where did it go wrong?'] as const;

class Studio {
  info = $state.raw<Info | null>(null);
  connection = $state<'starting' | 'live' | 'away' | 'lost'>('starting');
  notice = $state.raw<Notice | null>(null);

  // What will be asked.
  mode = $state<'text' | 'chat'>('text');
  prompt = $state(DEMO.prompt);
  conversation = $state<Message[]>([]); // the turns before the one that is written now
  system = $state('');
  sampling = $state.raw<Options>({ temperature: 0.8, max_tokens: 60, logprobs: 20 });

  // What is here.
  version = $state(0); // of what is drawn of the tree
  tables = $state(0); // of what is in tables: they wait longer
  private frame = $state(0); // of the text: it never waits
  tree = $state<string | null>(null);
  runId = $state<string | null>(null);
  busy = $state(false);

  // Where one looks.
  pin = $state<number | null>(null);
  hover = $state<number | null>(null);
  choice = $state<number | null>(null); // the id of an alternative at the pinned token
  lens = $state(0);
  caption = $state(false);
  dialog = $state<'help' | 'settings' | 'edit' | 'share' | null>(null);
  tour = $state<number | null>(null);

  readonly fields = new FieldErrors();
  readonly voice = new Voice();
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
  suggestion = $derived.by(() => (this.run && !this.live && !this.playing && this.head === null ? suggest(this.run.tokens) : null));
  /** The token the tree and the panel are about. */
  focus = $derived.by<number | null>(() => {
    if (this.pin !== null && this.pin < this.count + (this.run?.end ? 1 : 0)) return this.pin;
    if (this.live || this.playing || this.head !== null) return this.shownCount ? this.shownCount - 1 : null;
    return this.suggestion?.index ?? (this.count ? this.count - 1 : null);
  });
  focusToken = $derived(this.tokenAt(this.focus));

  private paces = [new Pace(TREE, () => this.version++), new Pace(TABLES, () => this.tables++)];
  private asked = new Map<string, Message[]>(); // by root

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
    const link = fromHash(location.hash);
    if (link.run || link.recipe) await this.openLink();
    else await this.guard(() => this.first());
  }

  /** A short run of this server's, played once. */
  private async first(): Promise<void> {
    const same = (run: Summary): boolean =>
      run.prompt === DEMO.prompt && run.parent === null && run.status === 'done' && Object.entries(DEMO.sampling).every(([name, value]) => run.sampling[name] === value);
    const runs = await api.runs();
    const made = runs.find((run) => same(run) && runs.filter((each) => each.tree === run.tree).length === 1);
    const summary = made ?? (await api.start(DEMO))[0]!;
    this.playback.head = 0;
    await this.open(summary.tree, summary.id);
    this.caption = true;
    this.replay();
  }

  async openLink(): Promise<void> {
    const { run, at, recipe } = fromHash(location.hash);
    try {
      if (run === null) throw new ApiError(404, '');
      const found = await api.run(run, 0);
      return await this.open(found.tree, run, at);
    } catch (error) {
      if (!(error instanceof ApiError && error.expired)) return this.fail(error);
      if (!recipe) return this.tellExpired(null);
      await this.guard(() => this.make(recipe));
    }
    this.pin = at;
  }

  /** Make a run again: the same prompt, options and seed give the same tokens. */
  async make(recipe: Recipe): Promise<void> {
    const { turns, ...body } = recipe;
    let [summary] = await this.start(body);
    for (const { at, text, ...turn } of turns) {
      await this.feed.ended(summary!.id);
      [summary] = text === undefined ? await this.fork(summary!.id, { at, ...turn }) : await this.edit(summary!.id, at, text);
    }
    this.sampling = { ...this.sampling, ...recipe.sampling };
    if (recipe.prompt !== undefined) this.prompt = recipe.prompt;
  }

  // ── the tree that is open ─────────────────────────────────────────────────────────────────────────────────

  async open(tree: string, run: string, at: number | null = null): Promise<void> {
    this.pin = this.hover = this.choice = null;
    this.tree = tree;
    await this.feed.open(tree);
    if (tree !== this.tree) return;
    this.runId = run;
    this.pin = at;
    this.draw();
    const opened = this.forest.runs.get(run);
    if (opened && !this.asked.has(opened.summary.root)) this.prompt = opened.summary.prompt;
  }

  /** The text shows what has come with this frame, the rest when it is time. */
  private came(events: readonly TreeEvent[]): void {
    for (const event of events) if (event.run === this.runId && (event.kind === 'end' || this.head === null)) this.voice.read(event);
    this.frame++;
    const { live } = this.forest;
    for (const pace of this.paces) pace.ask(live);
  }

  /** Somebody did something: all of the page shows it now. */
  private draw(): void {
    for (const pace of this.paces) pace.go();
  }

  private connected(): void {
    if (this.connection === 'away') this.notice = null;
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
    this.runId = run;
    this.pin = index;
    this.choice = null;
  }

  // ── asking ────────────────────────────────────────────────────────────────────────────────────────────────

  /** Start what is written in the prompt. */
  async ask(more: Partial<StartBody> = {}): Promise<void> {
    await this.guard(async () => {
      this.fields.check();
      if (this.mode === 'text') return void (await this.start({ prompt: this.prompt, sampling: this.sampling, ...more }));
      const messages = this.messages;
      await this.start({ messages, sampling: this.sampling, ...more });
      this.conversation = messages.filter((each) => each.role !== 'system');
      this.prompt = '';
    });
  }

  private get messages(): Message[] {
    return messagesOf(this.system, this.conversation, this.run?.summary.text ?? null, this.prompt);
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
      if (body.tree === undefined || body.tree !== this.tree) await this.open(runs[0]!.tree, runs[0]!.id);
      else for (const run of runs) this.forest.tell(run);
      for (const run of runs) if (!this.forest.runs.get(run.id)?.prompt.length) void this.feed.details(run.id);
      if (body.messages) this.asked.set(runs[0]!.root, body.messages);
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
    return this.guard(async () => {
      this.fields.check();
      const same = this.run && this.tree && (this.mode === 'text' ? this.prompt === this.run.summary.prompt : this.prompt.trim() === '');
      const { temperature: _, ...common } = this.sampling;
      const seeded = { ...common, seed: this.run?.summary.seed ?? common['seed'], max_tokens: same ? this.run?.summary.sampling['max_tokens'] : common['max_tokens'] };
      const messages = same && this.run ? this.asked.get(this.run.summary.root) : this.mode === 'chat' ? this.messages : undefined;
      const asked = messages ? { messages } : { prompt: this.prompt };
      await this.start({ ...asked, sampling: seeded, strategies, ...(same && this.tree && this.connection === 'live' ? { tree: this.tree } : {}) });
      this.lens = 0;
    });
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

  /** Go on from here with the chosen alternative, or with new luck. */
  forkHere(token: number | null = this.choice, at: number | null = this.focus): Promise<void> {
    return this.guard(async () => {
      if (!this.run || at === null) return;
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

  /** Somebody does something: what plays by itself gives way. */
  touch(): void {
    this.playback.end();
    this.caption = false;
    this.notice = this.connection === 'live' ? null : this.notice;
    this.voice.begin();
  }

  // ── looking ───────────────────────────────────────────────────────────────────────────────────────────────

  pinAt(index: number | null): void {
    if (index !== null && (index < 0 || index > this.last)) return;
    this.playback.pause();
    this.caption = false;
    if (this.head !== null && index !== null && index >= this.head) this.playback.end();
    this.pin = index;
    this.choice = null;
    const token = this.tokenAt(index);
    if (token) this.voice.say(`Token ${token.index}: “${spoken(token.piece, token.bytes)}”.`);
  }

  /** The last place one can look at: the token that ended the run, where it is known. */
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

  /** Up and down the alternatives of the token that is looked at. */
  choose(by: number): void {
    const token = this.focusToken;
    if (!token) return;
    if (this.pin === null) this.pin = this.focus;
    const others = token.alternatives.filter((each) => each.id !== token.id);
    const at = others.findIndex((each) => each.id === this.choice) + by;
    this.choice = at < 0 ? null : (others[Math.min(at, others.length - 1)]?.id ?? null);
    const chosen = others.find((each) => each.id === this.choice);
    this.voice.say(chosen ? `Alternative: “${spoken(chosen.text)}”. Enter forks.` : `“${spoken(token.piece)}”, the one that was chosen.`);
  }

  // ── links and files ───────────────────────────────────────────────────────────────────────────────────────

  share(): string {
    if (!this.run || !this.info) return location.href;
    const recipe = recipeOf(this.run, this.forest.runs, this.info.options, this.asked.get(this.run.summary.root));
    return `${location.origin}${location.pathname}${toHash({ run: this.run.summary.id, at: this.pin, recipe })}`;
  }

  again(): Promise<void> {
    return this.guard(async () => {
      if (!this.run || !this.info) return this.ask();
      const recipe = recipeOf(this.run, this.forest.runs, this.info.options, this.asked.get(this.run.summary.root));
      if (recipe) await this.make(recipe);
    });
  }

  async importFile(file: Blob): Promise<void> {
    await this.guard(async () => {
      const [run] = await api.import(file);
      if (run) await this.open(run.tree, run.id);
    });
  }

  async exportFile(): Promise<void> {
    await this.guard(async () => {
      if (this.run) await save(api.exportAddress(this.run.summary.id), `${this.run.summary.id}.glass`);
    });
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

  private tellExpired(run: Run | null): void {
    const text = 'The server no longer has this run: it was restarted, or the run was removed.';
    this.notice = run
      ? { kind: 'error', text: `${text} The same prompt, options and seed give the same tokens.`, action: { label: 'Make it again', run: () => this.again() } }
      : { kind: 'error', text, action: { label: 'Start a new one', run: () => this.guard(() => this.first()) } };
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

  get changes(): Options {
    return this.info ? changed(this.sampling, this.info.options) : this.sampling;
  }
}

export const studio = new Studio();
