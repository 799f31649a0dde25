// What kernel and front end say to each other on the comm `forebay`: docs/reference/notebook.md.
import { IOutput } from '@jupyterlab/nbformat';
import { JSONObject } from '@lumino/coreutils';

import { Cause, FlavorRow, SessionRow } from './rows';

export const TARGET = 'forebay';
/** Id of the comm on which the kernel tells all pages; nobody opens it, so that a page which is loaded while a cell runs hears it at once. */
export const EVERYBODY = 'forebay-state';

export interface Money {
  currency: string;
  nano: number;
}

export interface Flavor {
  name: string;
  memory_bytes: number | null;
  price_nano_per_hour: number | null;
  currency: string | null;
}

export interface Queued {
  /** 1 is next; 0: nobody knows. */
  position: number;
  /** As the kernel says it; a front end that knows the cause says it in the reader's language. */
  reason: string;
  /** Absent from kernels of older releases, and of pools of older ones. */
  cause?: Cause | null;
  code: string;
  ahead: number;
  /** How long yet, in the words of the line below the cell; empty where nobody knows, absent from kernels of older releases. */
  left?: string;
}

export type DeviceState = 'idle' | 'queued' | 'starting' | 'restoring' | 'computing' | 'resident' | 'moving';

export interface Device {
  device: number;
  session: string | null;
  flavor: Flavor | null;
  state: DeviceState;
  since_ns: number;
  queued: Queued | null;
  model: string | null;
  /** What its open leases cost per hour. */
  running: Money[];
  memory_bytes: number;
  /** Of several devices, where one did most of the last cell alone; absent from kernels of older releases. */
  alone?: Alone | null;
  /** What came again in the last cell, the one with the most calls first; absent from kernels of older releases. */
  segments?: Segment[];
}

export interface Segment {
  calls: number;
  times: number;
  /** 0: call by call as they came; 1: known by the worker; 2: by a compiled library, or by graphs. */
  tier: number;
  /** Why no higher tier, or what the library gains, as the worker says it. */
  why: string;
}

export interface Alone {
  devices: number;
  percent: number;
  /** The longest first: operators, and `no_batch` or `no_room`. */
  causes: string[];
}

export interface Cell {
  cell: number | null;
  /** The front end's id of it; absent from kernels of older releases, as is how it begins. */
  cell_id?: string | null;
  first_line?: string | null;
  flavor: string;
  device_ns: number;
  waited_ns: number;
  cost: Money[];
  /** False where the pool has not told what it cost, though somebody bills; absent from kernels of older releases. */
  cost_known?: boolean;
  open: boolean;
}

export interface Budget {
  left_nano: number | null;
  limit_nano: number | null;
  currency: string;
  /** Why it stops somebody, as the kernel says it. */
  sentence: string | null;
  cause?: Cause | null;
}

export interface State {
  type: 'state';
  configured: boolean;
  failure: string | null;
  devices: Device[];
  spent: Money[];
  device_ns: number;
  cells: Cell[];
  budget: Budget | null;
  /** False where the kernel asked billing and got no answer; absent from kernels of older releases. */
  budget_known?: boolean;
  /** Why the kernel's last look at the service failed. */
  problem?: string | null;
  quiet: boolean;
  /** Absent from kernels of older releases. */
  notify?: NotifySetting;
}

/** The last run of a cell: said as it begins, and in a list. */
export interface Run {
  type?: 'run';
  request: string;
  /** The page that asked for it. */
  session: string;
  cell_id: string;
  count: number;
  running: boolean;
}

/** A cell asks, or was answered: then there is no prompt, and `output` stands where the question was. */
export interface Input {
  type: 'input';
  request: string;
  prompt?: string;
  password?: boolean;
  output?: IOutput | null;
}

/** A long cell ended, failed or waits, or a budget stopped one; `why` is in the page's language, or the name of an error. */
export interface Notice {
  type: 'notice';
  kind: 'ended' | 'failed' | 'waits' | 'budget';
  cell: number;
  first_line: string | null;
  seconds: number;
  why: string | null;
}

export interface NotifySetting {
  on: boolean;
  after_seconds: number;
  /** Whether the person's own channels are told too; absent from kernels and files of older releases. */
  channels?: boolean;
}

/** A run with what it showed. */
export interface Snapshot extends Run {
  outputs: IOutput[];
  /** Id of the last message that is in it. */
  last: string;
  asks: { prompt: string; password: boolean } | null;
  /** Whether the next output takes the place of all before it. */
  clears: boolean;
}

export interface Answer {
  type: 'answer';
  id?: number;
  value?: unknown;
  error?: string;
}

export interface Offer extends FlavorRow {
  chosen: boolean;
  /** How long one who asks now would wait, in words; absent from kernels of older releases. */
  wait?: string;
}

export interface Session extends SessionRow {
  here: boolean;
}

export interface Overview {
  type?: 'overview';
  flavors: Offer[];
  sessions: Session[];
}

/** What a kernel's environment has: the lines of a requirements.txt. */
export interface Recorded extends JSONObject {
  python: string;
  requirements: string[];
}
