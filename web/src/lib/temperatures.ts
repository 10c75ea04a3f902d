// The winner at each temperature; neighbouring temperatures with the same winner are joined.

export const TEMPERATURES = [0, 0.2, 0.4, 0.6, 0.8, 1, 1.2, 1.4, 1.6, 1.8, 2] as const;

export interface Winner {
  temperature: number;
  id: number;
  text: string;
}

export interface Stretch {
  from: number;
  to: number;
  count: number;
  id: number;
  text: string;
}

export function stretches(winners: readonly Winner[]): Stretch[] {
  const made: Stretch[] = [];
  for (const { temperature, id, text } of winners) {
    const last = made.at(-1);
    if (last?.id === id) {
      last.to = temperature;
      last.count++;
    } else {
      made.push({ from: temperature, to: temperature, count: 1, id, text });
    }
  }
  return made;
}
