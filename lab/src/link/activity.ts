// What a notebook's devices did in the last ten minutes, from what the kernel says anyway: nobody is asked for it.
import { State } from '../protocol/messages';

export const SPAN_MS = 600_000;
const MOMENTS_MAX = 1200;

interface Moment {
  /** By performance.now(). */
  at: number;
  computing: boolean;
  bytes: number;
}

/** A time in which nothing changed; `from` and `to` are parts of the last ten minutes, which end at 1. */
export interface Stretch {
  from: number;
  to: number;
  computing: boolean;
  bytes: number;
}

export class Activity {
  /** Takes what the kernel said; what is older than ten minutes is forgotten, but for what began before and goes on into them. */
  heard(state: State, at: number): void {
    const computing = state.devices.some(device => device.state === 'computing');
    const bytes = state.devices.reduce((sum, device) => sum + device.memory_bytes, 0);
    const last = this._moments[this._moments.length - 1];
    if (last === undefined || last.computing !== computing || last.bytes !== bytes) {
      this._moments.push({ at, computing, bytes });
    }
    while (this._moments.length > MOMENTS_MAX || (this._moments.length > 1 && this._moments[1].at <= at - SPAN_MS)) {
      this._moments.shift();
    }
  }

  stretches(now: number): Stretch[] {
    const part = (at: number) => Math.min(1, Math.max(0, 1 - (now - at) / SPAN_MS));
    return this._moments
      .map(({ at, computing, bytes }, place) => ({
        from: part(at),
        to: part(this._moments[place + 1]?.at ?? now),
        computing,
        bytes
      }))
      .filter(({ from, to }) => to > from);
  }

  private readonly _moments: Moment[] = [];
}
