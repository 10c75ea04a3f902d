// The engines behind the server: its own, or the replicas of a cluster.

import { api } from './api';

export interface Replica {
  id: string;
  pid: number;
  node: string;
  model: string;
  waiting: number;
  running: number;
  finished: number;
  cached_tokens: number; // in its KV cache now
  prompt_tokens: number;
  prompt_tokens_cached: number;
  kv_bytes: number;
  kv_memory: number;
}

/** A stream that went on in another replica. */
export interface Handover {
  time: number; // Unix time
  run: string;
  tokens: number;
  source: string;
  target: string;
  reason: string;
  seconds: number; // without a replica
}

export interface Cluster {
  ready: boolean;
  problem: string | null;
  replicas: Replica[];
  handovers: Handover[];
}

export const cluster = (signal?: AbortSignal): Promise<Cluster> => api.read('/api/cluster', signal);
