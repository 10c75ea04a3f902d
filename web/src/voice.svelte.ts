// The live region for screen readers: sentences, not tokens.

import { Sentences } from './lib/speech';
import type { TreeEvent } from './lib/types';
import { shown } from './lib/visible';

export class Voice {
  spoken = $state('');
  private sentences = new Sentences();

  say(...sentences: string[]): void {
    if (sentences.length) this.spoken = sentences.join(' ');
  }

  /** Reads an event of the selected run. A sentence is spoken when it is complete. */
  read(event: TreeEvent): void {
    if (event.kind === 'token') this.say(...this.sentences.feed(event.token.text));
    if (event.kind !== 'end') return;
    const { status, usage } = event.summary;
    const rest = this.sentences.finish();
    const end = status === 'paused' ? 'Paused.' : `The run has ended after ${usage.completion_tokens} tokens.`;
    this.say(...(rest ? [shown(rest).replaceAll('·', ' ')] : []), end);
  }

  /** Starts with another text. */
  begin(): void {
    this.sentences = new Sentences();
  }
}
