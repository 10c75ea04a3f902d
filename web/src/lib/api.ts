// The server's endpoints as functions. Every address is on this page's own origin.

import { parse, stringify } from './json';
import { runIdOf } from './link';
import { Waiting } from './waiting';
import type { Explanation, Info, NeighboursLens, Options, Passes, StartBody, Summary, Tokenized, WholeRun, Worst } from './types';

// Behind one address there may be several servers. Requests with the same session go to the same one, which tells of its
// runs while they are computed.
const SESSION = session();

function session(): string {
  const made = Array.from(crypto.getRandomValues(new Uint8Array(8)), (byte) => byte.toString(16).padStart(2, '0')).join('');
  try {
    const known = localStorage.getItem('session');
    if (known === null) localStorage.setItem('session', made);
    return known ?? made;
  } catch {
    return made;
  }
}

/** What went wrong, in words for people, with the server's code where it gave one. */
export class ApiError extends Error {
  constructor(
    readonly status: number, // 0: the server could not be reached
    message: string,
    readonly code: string | null = null,
    readonly param: string | null = null,
  ) {
    super(message);
  }

  get gone(): boolean {
    return this.status === 0;
  }

  get expired(): boolean {
    return this.status === 404;
  }
}

let listener: (slow: boolean) => void = () => {};
const waiting = new Waiting((count) => listener(count > 0));

/** Calls the function when the server takes long to answer, and when it has answered. */
export function onSlow(call: (slow: boolean) => void): void {
  listener = call;
}

export async function ask(path: string, init: RequestInit = {}): Promise<Response> {
  let answer: Response;
  try {
    answer = await waiting.during(fetch(path, { ...init, headers: { ...init.headers, 'x-session-id': SESSION }, credentials: 'same-origin' }));
  } catch (error) {
    if (error instanceof DOMException && error.name === 'AbortError') throw error;
    throw new ApiError(0, 'The server cannot be reached.');
  }
  if (!answer.ok) throw await refusal(answer);
  return answer;
}

async function refusal(answer: Response): Promise<ApiError> {
  try {
    const { error } = (await answer.json()) as { error: { message: string; code: string | null; param: string | null } };
    return new ApiError(answer.status, sentence(error.message), error.code, error.param);
  } catch {
    return new ApiError(answer.status, `The server answered ${answer.status} ${answer.statusText}.`);
  }
}

function sentence(message: string): string {
  const begun = message.charAt(0).toUpperCase() + message.slice(1);
  return /[.!?]$/.test(begun) ? begun : `${begun}.`;
}

async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  return parse(await (await ask(path, signal ? { signal } : {})).text()) as T;
}

async function post<T>(path: string, body: unknown, signal?: AbortSignal): Promise<T> {
  const init = { method: 'POST', headers: { 'content-type': 'application/json' }, body: stringify(body), ...(signal ? { signal } : {}) };
  return parse(await (await ask(path, init)).text()) as T;
}

interface Runs {
  runs: Summary[];
}
/** A page of the list of runs, the newest first: those that contain a text, after the run that ended the last page. */
export interface RunsQuery {
  search?: string;
  before?: string;
  limit: number;
}
export interface ForkBody {
  at: number;
  token?: number;
  sampling?: Options;
  pause_after?: number;
}

export const api = {
  /** Any other address that is only read. */
  read: <T>(path: string, signal?: AbortSignal) => get<T>(path, signal),
  send: <T>(path: string, body: unknown, signal?: AbortSignal) => post<T>(path, body, signal),
  info: () => get<Info>('/api/info'),
  runs: ({ search = '', before, limit }: RunsQuery) =>
    get<Runs & { more: boolean }>(`/api/runs?${new URLSearchParams({ limit: String(limit), ...(search.trim() ? { search: runIdOf(search.trim()) } : {}), ...(before ? { before } : {}) })}`),
  tree: async (tree: string) => (await get<Runs>(`/api/runs?limit=500&tree=${encodeURIComponent(tree)}`)).runs,
  start: async (body: StartBody) => (await post<Runs>('/api/runs', body)).runs,
  /** A run with its tokens, or with those from one on. */
  run: (id: string, alternatives = 20, from = 0) => get<WholeRun>(`/api/runs/${encodeURIComponent(id)}?alternatives=${alternatives}${from ? `&from=${from}` : ''}`),
  fork: async (id: string, body: ForkBody) => (await post<Runs>(`/api/runs/${id}/fork`, body)).runs,
  edit: async (id: string, at: number, text: string) => (await post<Runs>(`/api/runs/${id}/edit`, { at, text })).runs,
  step: (id: string, tokens: number | null) => post<Summary>(`/api/runs/${id}/step`, { tokens }),
  remove: (id: string) => ask(`/api/runs/${encodeURIComponent(id)}`, { method: 'DELETE' }),
  stop: (id: string) => post<Summary>(`/api/runs/${id}/stop`, {}),
  tokenize: (prompt: string, special = false, signal?: AbortSignal) =>
    post<Tokenized>('/tokenize', { prompt, add_special_tokens: special, parse_special_tokens: special }, signal),
  explain: (id: string, index: number, changes: Options = {}, luck: 'same' | 'new' = 'same', signal?: AbortSignal) =>
    get<Explanation>(`/api/runs/${id}/explain/${index}${query(changes, luck)}`, signal),
  /** Why a place of a text that was filled in passes got its token in one of them, or what that pass thought of it. */
  explainPass: (id: string, place: number, pass: number, signal?: AbortSignal) => get<Explanation>(`/api/runs/${id}/explain/${place}?pass=${pass}`, signal),
  passes: (id: string, after: number) => get<Passes>(`/api/runs/${encodeURIComponent(id)}/passes${after < 0 ? '' : `?after=${after}`}`),
  explainPrompt: (id: string, index: number) => get<Explanation>(`/api/runs/${id}/explain/${index}?of=prompt`),
  worst: (id: string, signal?: AbortSignal) => get<Worst>(`/api/runs/${encodeURIComponent(id)}/worst`, signal),
  lens: <T>(id: string, name: string, token: number, more = '', signal?: AbortSignal) => get<T>(`/api/runs/${id}/lens/${name}?token=${token}${more}`, signal),
  neighbours: (of: string, signal?: AbortSignal) => get<NeighboursLens>(`/api/lens/neighbours?${new URLSearchParams({ of, count: '8' })}`, signal),
  exportAddress: (id: string) => `/api/runs/${encodeURIComponent(id)}/export`,
  /** The page of a run, with the explanations of these tokens. */
  pageAddress: (id: string, explain: 'all' | number) => `/api/runs/${encodeURIComponent(id)}/page.html?explain=${explain}`,
  /** The run of a file. A server that refuses it because the run is there already names that run. */
  import: async (file: Blob): Promise<Summary[]> => {
    try {
      const answer = await ask('/api/runs/import', { method: 'POST', headers: { 'content-type': 'application/octet-stream' }, body: file });
      return (parse(await answer.text()) as Runs).runs;
    } catch (error) {
      const here = error instanceof ApiError && error.status === 409 ? /\brun ['"“]?([\w-]{8,64})/i.exec(error.message)?.[1] : undefined;
      if (here === undefined) throw error;
      return [await api.run(here, 0)];
    }
  },
};

export function query(changes: Options, luck: 'same' | 'new'): string {
  const parts = new URLSearchParams();
  for (const [name, value] of Object.entries(changes)) parts.set(name, typeof value === 'string' ? value : stringify(value));
  if (luck === 'new') parts.set('luck', 'new');
  const text = parts.toString();
  return text ? `?${text}` : '';
}
