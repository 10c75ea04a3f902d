// The line of entropies at the bottom of the page: how unsure the model was at each token.

import { scaleLinear } from 'd3-scale';
import { area, curveMonotoneX, line } from 'd3-shape';

export interface Spark {
  line: string;
  area: string;
  x: (token: number) => number;
  token: (x: number) => number;
  top: number;
}

export function spark(entropies: readonly number[], width: number, height: number): Spark {
  const points = sampled(entropies, width / 2);
  const top = Math.max(3, ...points.map(([, value]) => value));
  const x = scaleLinear().domain([0, Math.max(1, entropies.length - 1)]).range([2, width - 2]);
  const y = scaleLinear().domain([0, top]).range([height - 1, 2]);
  return {
    line: line<[number, number]>((each) => x(each[0]), (each) => y(each[1])).curve(curveMonotoneX)(points) ?? '',
    area: area<[number, number]>((each) => x(each[0]), height - 1, (each) => y(each[1])).curve(curveMonotoneX)(points) ?? '',
    x: (token) => x(token),
    token: (at) => Math.min(entropies.length - 1, Math.max(0, Math.round(x.invert(at)))),
    top,
  };
}

/** Returns at most this many points: the highest of each group of neighbours, so that no peak is lost. */
export function sampled(values: readonly number[], most: number): [number, number][] {
  const size = Math.max(1, Math.ceil(values.length / Math.max(1, most)));
  const made: [number, number][] = [];
  for (let from = 0; from < values.length; from += size) {
    let best = from;
    for (let i = from; i < Math.min(values.length, from + size); i++) if (values[i]! > values[best]!) best = i;
    made.push([best, values[best]!]);
  }
  return made;
}
