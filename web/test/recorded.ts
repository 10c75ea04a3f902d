// What the real engine said, recorded by record.mjs.
import { readFileSync } from 'node:fs';
import { EventParser, toTreeEvent } from '../src/lib/events';
import type { Explanation, Info, Passes, TreeEvent, WholeRun } from '../src/lib/types';

const text = (name: string): string => readFileSync(new URL(`./data/${name}`, import.meta.url), 'utf8');
const json = <T>(name: string): T => JSON.parse(text(name)) as T;

export const eventText = text('events.txt');
const eventsOf = (told: string): TreeEvent[] => new EventParser().feed(told).flatMap((raw) => toTreeEvent(raw) ?? []);
export const events = (): TreeEvent[] => eventsOf(eventText);
export const passEvents = (): TreeEvent[] => eventsOf(text('passes.txt'));
export const passes = (): Passes => json('passes.json');
export const run = (): WholeRun => json('run.json');
export const fork = (): WholeRun => json('fork.json');
export const beams = (): WholeRun => json('beams.json');
export const drafts = (): WholeRun => json('drafts.json');
export const explanation = (): Explanation => json('explain.json');
export const info = (): Info => json('info.json');
