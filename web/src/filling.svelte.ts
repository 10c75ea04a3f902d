// Why a place of a text that is filled in passes got its token in one of them, or what a pass thought of a place that
// it left masked. The server computes that pass again.

import { api, ApiError } from './lib/api';
import type { Explanation } from './lib/types';

export interface AskedPass {
  run: string;
  place: number;
  pass: number;
  piece: string | null; // what the pass put there; null: it stayed masked
  entropy: number | null; // of the model's own distribution there, where it was recorded
}

export class PassReason {
  asked = $state.raw<AskedPass | null>(null);
  told = $state.raw<Explanation | null>(null);
  wrong = $state('');
  private stop = new AbortController();

  async ask(asked: AskedPass): Promise<void> {
    this.clear();
    const { signal } = (this.stop = new AbortController());
    this.asked = asked;
    try {
      const told = await api.explainPass(asked.run, asked.place, asked.pass, signal);
      if (!signal.aborted) this.told = told;
    } catch (error) {
      if (!signal.aborted && !(error instanceof ApiError && error.gone)) this.wrong = (error as Error).message;
    }
  }

  clear(): void {
    this.stop.abort();
    this.asked = this.told = null;
    this.wrong = '';
  }
}
