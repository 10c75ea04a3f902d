// The tint of a token by its surprise: none where the model was sure. The colours are cividis, which is readable with
// most kinds of colour blindness; an underline shows the same without colour.

import { scaleLinear } from 'd3-scale';

const CIVIDIS = ['#00224e', '#123570', '#3b496c', '#575d6d', '#707173', '#8a8678', '#a59c74', '#c3b369', '#e1cc55', '#fee838'];
const colour = scaleLinear<string>().domain(CIVIDIS.map((_, place) => place / (CIVIDIS.length - 1))).range(CIVIDIS).clamp(true);
const CALM = 0.7; // nats: a probability of about one half
const MOST = 7;

/** Returns the surprise of a token on a scale from 0 (sure) to 1 (very surprising). */
export function surprise(rawLogprob: number | null): number {
  if (rawLogprob === null) return 1;
  if (Number.isNaN(rawLogprob)) return 0;
  return Math.min(1, Math.max(0, (-rawLogprob - CALM) / (MOST - CALM)));
}

export function heat(level: number): string {
  return colour(level);
}

/** Returns the background colour of a token. */
export function tint(rawLogprob: number | null): string {
  const level = surprise(rawLogprob);
  if (level === 0) return 'transparent';
  const channels = /(\d+), (\d+), (\d+)/.exec(colour(0.3 + 0.7 * level));
  return channels ? `rgba(${channels[1]}, ${channels[2]}, ${channels[3]}, ${(0.1 + 0.3 * level).toFixed(3)})` : 'transparent';
}

/** Returns the thickness of the line under a token, in pixels. */
export function underline(rawLogprob: number | null): number {
  const level = surprise(rawLogprob);
  return level === 0 ? 0 : level < 0.35 ? 1 : level < 0.7 ? 2 : 3;
}

/** The entropy from which the model counts as uncertain: the keys N and P go to these tokens. */
export const UNCERTAIN = 2; // nats
export function uncertain(entropies: readonly number[], from: number, direction: 1 | -1): number | null {
  for (let i = from + direction; i >= 0 && i < entropies.length; i += direction) if (entropies[i]! >= UNCERTAIN) return i;
  return null;
}
