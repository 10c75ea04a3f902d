// Training runs, as the server reads them from their folders.

import { api } from './api';

export interface TrainingRun {
  name: string;
  steps: number | null;
  step: number;
  loss: number | null;
  validation: number | null;
  tokens: number | null;
  seconds: number | null;
  ended: boolean;
  changed: number;
  idle: number;
}

export type Curve = [number, number][];

export interface TrainingCurves extends TrainingRun {
  settings: Record<string, string | number | boolean>;
  curves: { loss: Curve; lr: Curve; norm: Curve; validation: Curve; tokens_per_second: Curve };
  samples: { step: number; text: string }[];
}

export interface Training {
  runs: TrainingRun[];
  shown: TrainingCurves | null;
}

export const training = (run: string | null, signal?: AbortSignal): Promise<Training> => api.read(`/api/training?points=300${run === null ? '' : `&run=${encodeURIComponent(run)}`}`, signal);
