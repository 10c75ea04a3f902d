// Formats the engine's numbers for reading. Nothing is computed here except rounding.

/** What is shown for NaN: a number that another engine did not tell. */
export const UNKNOWN = 'unknown';

/** Returns the probability of a log-probability, as a percentage. */
export function percent(logprob: number | null): string {
  return logprob === null ? 'removed' : share(Math.exp(logprob));
}

export function share(value: number): string {
  if (Number.isNaN(value)) return UNKNOWN;
  const hundred = 100 * value;
  if (hundred >= 99.95) return value === 1 ? '100 %' : '>99.9 %';
  if (hundred >= 10) return `${hundred.toFixed(1)} %`;
  if (hundred >= 0.1) return `${hundred.toFixed(2)} %`;
  if (hundred >= 1e-6) return `${hundred.toPrecision(1)} %`.replace(/e-0?(\d)/, 'e-$1');
  return value === 0 ? '0 %' : '≈0 %';
}

export const decimal = (value: number | null, digits = 2): string => (value === null ? '∞' : Number.isNaN(value) ? UNKNOWN : value.toFixed(digits).replace('-', '−'));

export const signed = (value: number, digits = 2): string => (Number.isNaN(value) ? UNKNOWN : `${value < 0 ? '−' : '+'}${Math.abs(value).toFixed(digits)}`);

export function seconds(value: number): string {
  if (value < 0.0995) return `${(1000 * value).toFixed(1)} ms`;
  if (value < 9.95) return value < 0.9995 ? `${Math.round(1000 * value)} ms` : `${value.toFixed(2)} s`;
  return `${value.toFixed(1)} s`;
}

/** Returns tokens per second. */
export const speed = (value: number | null): string => (value === null ? '–' : value < 1000 ? value.toFixed(1) : count(Math.round(value)));

/** Returns how long ago something was. */
export function ago(value: number): string {
  if (value < 1.5) return 'just now';
  const [size, unit] = value < 90 ? [1, 's'] : value < 5400 ? [60, 'min'] : value < 129_600 ? [3600, 'h'] : [86_400, 'days'];
  return `${Math.round(value / size)} ${unit} ago`;
}

/** Returns a size of memory in powers of 1024, as the terminal does: what was given as 4GB is 4.0 GB. */
export function bytes(value: number): string {
  for (const unit of ['B', 'KB', 'MB']) {
    if (value < 1024) return `${value.toFixed(value >= 10 || unit === 'B' ? 0 : 1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} GB`;
}

/** Returns a whole number with thousands separated as in the terminal: 49,152. */
export const count = (value: number | null): string => (value === null || Number.isNaN(value) ? UNKNOWN : value.toString().replace(/\B(?=(\d{3})+$)/g, ','));

export const plural = (value: number | null, noun: string): string => `${count(value)} ${noun}${value === 1 ? '' : 's'}`;

/** Returns why a run ended, in a word or two. */
export const endWord = (reason: string | null): string =>
  ({ stop: 'ended', length: 'token limit', timeout: 'time limit', repetition: 'repetition', cancelled: 'stopped' })[reason ?? ''] ?? 'failed';

/** Returns why a run ended, as a sentence. */
export function ending(reason: string | null, detail: string | null): string {
  switch (reason) {
    case null: return 'It is still running.';
    case 'stop': return detail ? `It ended with ${JSON.stringify(detail)}.` : 'It ended.';
    case 'length': return detail === 'context' ? "It ended because the model's context is full." : 'It reached the token limit.';
    case 'timeout': return 'It reached its time limit.';
    case 'repetition': return `It ended because it repeated itself${detail ? ` (${detail})` : ''}.`;
    case 'cancelled': return 'It was stopped.';
    default: return `It failed${detail ? `: ${detail}` : ''}.`;
  }
}
