// What a cell would take and cost if it ran again: its last runs, at the prices of now.
import { Cell, Offer } from '../protocol/messages';

const RUNS_MAX = 5;
const HOUR_NS = 3600e9;

export interface Range {
  low: number;
  high: number;
}

export interface Forecast {
  flavor: Offer;
  device_ns: Range;
  /** In nano-units of the flavor's currency; null where it has no price, or is not billed. */
  cost_nano: Range | null;
  /** Whether the cell ran on another flavor, and the time is estimated by how fast their devices are. */
  estimated: boolean;
}

/** The last runs of a cell that ended, the latest first. */
export function lastRuns(cells: Cell[], cellId: string): Cell[] {
  return cells.filter(cell => cell.cell_id === cellId && !cell.open).slice(0, RUNS_MAX);
}

/** For each flavor of which it can be told; the runs may have been on several. */
export function forecasts(runs: Cell[], offers: Offer[]): Forecast[] {
  return offers.filter(offer => offer.servable).flatMap(offer => forecast(runs, offer, offers) ?? []);
}

function forecast(runs: Cell[], offer: Offer, offers: Offer[]): Forecast | null {
  const there = runs.filter(run => run.flavor === offer.name);
  const times = there.length > 0 ? there.map(same) : runs.flatMap(run => elsewhere(run, offer, offers) ?? []);
  if (times.length === 0) {
    return null;
  }
  const device_ns = { low: Math.min(...times.map(({ low }) => low)), high: Math.max(...times.map(({ high }) => high)) };
  const rate = offer.currency === null ? null : offer.price_nano_per_hour;
  const cost_nano = rate === null ? null : { low: (device_ns.low * rate) / HOUR_NS, high: (device_ns.high * rate) / HOUR_NS };
  return { flavor: offer, device_ns, cost_nano, estimated: there.length === 0 };
}

function same(run: Cell): Range {
  return { low: run.device_ns, high: run.device_ns };
}

function elsewhere(run: Cell, offer: Offer, offers: Offer[]): Range | null {
  const here = powers(offers.find(({ name }) => name === run.flavor));
  const there = powers(offer);
  return here && there && { low: (run.device_ns * here.low) / there.high, high: (run.device_ns * here.high) / there.low };
}

/** Of the ways in which a flavor is served: devices, by their share and speed class. */
function powers(offer: Offer | undefined): Range | null {
  const ways = (offer?.equivalents ?? []).flatMap(({ count, share_milli, speed }) => (speed ? [count * share_milli * speed] : []));
  return ways.length > 0 ? { low: Math.min(...ways), high: Math.max(...ways) } : null;
}
