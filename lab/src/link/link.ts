// The comm to one kernel: holds what the kernel last said of its devices, and asks it for more.
import { ISessionContext } from '@jupyterlab/apputils';
import { Kernel, KernelMessage } from '@jupyterlab/services';
import { JSONObject } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';
import { ISignal, Signal } from '@lumino/signaling';

import { Activity } from './activity';
import { Answer, EVERYBODY, Input, Notice, Overview, Run, State, TARGET } from '../protocol/messages';

const SUBSHELL_MS = 2000;

/** What a front end tells each kernel as it connects. */
export interface Greeting {
  locale: string;
  /** Left out where the user wants the line: then the kernel's own setting holds. */
  quiet?: boolean;
}

/** A kernel is busy for less than that with what is asked of it beside cells. */
const PATIENCE_MS = 1000;

interface Waiting {
  resolve(value: unknown): void;
  reject(error: Error): void;
}

export class Link implements IDisposable {
  constructor(context: ISessionContext, greeting: () => Greeting) {
    this._context = context;
    this._greeting = greeting;
    context.kernelChanged.connect(this._onKernel, this);
    context.statusChanged.connect(this._onStatus, this);
    this._onKernel();
  }

  /** Emitted whenever the kernel said something, or is gone. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Emitted when a comm to the kernel is there. */
  get connected(): ISignal<this, void> {
    return this._connected;
  }

  /** Emitted when a cell begins, asks for input or was answered, whichever page it belongs to, and when there is news of a long one. */
  get told(): ISignal<this, Run | Input | Notice> {
    return this._told;
  }

  get kernel(): Kernel.IKernelConnection | null {
    return this._kernel;
  }

  /** What the kernel last said; null where it has said nothing. */
  get state(): State | null {
    return this._state;
  }

  /** When that was, by performance.now(). */
  get heardAt(): number {
    return this._heardAt;
  }

  /** What the devices did lately, as far as the kernel said it on this page. */
  get activity(): Activity {
    return this._activity;
  }

  /** What there is to choose from, and the user's sessions, as the kernel last said; null where it was not asked. */
  get overview(): Overview | null {
    return this._overview;
  }

  /** Whether a cell runs: a question now would have Jupyter show the kernel as idle, since another shell answers. */
  get busy(): boolean {
    const working = this._state?.devices.some(device => device.state !== 'idle' && device.state !== 'resident') ?? false;
    return working || this._kernel?.status === 'busy';
  }

  /** Whether a cell has run for longer than a question takes, on the device or here. */
  get running(): boolean {
    return this._running;
  }

  /** Whether an answer must wait until the cell that runs has ended. */
  get mustWait(): boolean {
    const kernel = this._kernel;
    return this._comm === null || (kernel !== null && kernel.status === 'busy' && !kernel.supportsSubshells);
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    if (this._disposed) {
      return;
    }
    this._disposed = true;
    window.clearTimeout(this._patience);
    this._forget();
    this._kernel?.removeCommTarget?.(TARGET, this._offered);
    Signal.clearData(this);
  }

  /** Asks for the overview, and to be told what changes in it for some minutes. */
  async look(): Promise<void> {
    this._overview = (await this.ask('overview')) as Overview;
    this._changed.emit();
  }

  /** Asks the kernel; it asks the pool. Rejected with the kernel's sentence. */
  ask(what: string, values: JSONObject = {}): Promise<unknown> {
    const comm = this._comm;
    if (comm === null || comm.isDisposed) {
      return Promise.reject(new Error('The kernel is not connected.'));
    }
    const id = ++this._asked;
    return new Promise((resolve, reject) => {
      this._waiting.set(id, { resolve, reject });
      comm.send({ ...values, ask: what, id });
    });
  }

  /** Tells the kernel what the user prefers. */
  tell(values: JSONObject): void {
    if (this._comm !== null && !this._comm.isDisposed) {
      this._comm.send(values);
    }
  }

  private _onKernel(): void {
    const kernel = this._context.session?.kernel ?? null;
    if (kernel === this._kernel) {
      return;
    }
    this._forget();
    this._kernel = kernel;
    kernel?.registerCommTarget(TARGET, this._offered);
    void this._connect();
  }

  private _onStatus(_: unknown, status: Kernel.Status): void {
    window.clearTimeout(this._patience);
    if (status === 'busy') {
      this._patience = window.setTimeout(() => this._setRunning(true), PATIENCE_MS);
    } else {
      this._setRunning(false);
    }
    if (status === 'restarting' || status === 'autorestarting' || status === 'dead') {
      this._forget();
      this._restarted = true;
    } else if (this._restarted && status === 'idle') {
      this._restarted = false;
      void this._connect();
    }
  }

  private _setRunning(running: boolean): void {
    if (running !== this._running) {
      this._running = running;
      this._changed.emit();
    }
  }

  /** The kernel has got the package just now: its comm is an invitation to open ours. */
  private _offered = (comm: Kernel.IComm): void => {
    comm.dispose();
    if (this._comm === null) {
      void this._connect();
    }
  };

  private async _connect(): Promise<void> {
    const kernel = this._kernel;
    if (kernel === null || this._disposed || this._connecting) {
      return;
    }
    this._connecting = true;
    this._listen(kernel);
    try {
      await kernel.info;
      if (kernel !== this._kernel || kernel.isDisposed || !kernel.handleComms) {
        return;
      }
      const comm = kernel.createComm(TARGET);
      await started(kernel, comm);
      comm.onMsg = message => this._heard(message);
      comm.onClose = () => this._lost(comm);
      this._comm = comm;
      comm.open({ ...this._greeting() });
      this._connected.emit();
    } finally {
      this._connecting = false;
    }
  }

  private _listen(kernel: Kernel.IKernelConnection): void {
    if (kernel.handleComms && !kernel.hasComm(EVERYBODY)) {
      kernel.createComm(TARGET, EVERYBODY).onMsg = message => this._heard(message);
    }
  }

  private _heard(message: KernelMessage.ICommMsgMsg): void {
    const data = message.content.data as unknown as State | Answer | Overview | Run | Input | Notice;
    if (data.type === 'state') {
      this._state = data;
      this._heardAt = performance.now();
      this._activity.heard(data, this._heardAt);
      this._changed.emit();
    } else if (data.type === 'overview') {
      this._overview = data;
      this._changed.emit();
    } else if (data.type === 'run' || data.type === 'input' || data.type === 'notice') {
      this._told.emit(data);
    } else if (data.type === 'answer' && data.id !== undefined) {
      const waiting = this._waiting.get(data.id);
      this._waiting.delete(data.id);
      if (data.error !== undefined) {
        waiting?.reject(new Error(data.error));
      } else {
        waiting?.resolve(data.value);
      }
    }
  }

  private _lost(comm: Kernel.IComm): void {
    if (comm === this._comm) {
      this._forget();
    }
  }

  private _forget(): void {
    const comm = this._comm;
    this._comm = null;
    this._state = null;
    this._overview = null;
    this._activity = new Activity();
    this._waiting.forEach(waiting => waiting.reject(new Error('The kernel was restarted.')));
    this._waiting.clear();
    if (comm !== null && !comm.isDisposed && this._disposed) {
      comm.close();
    }
    this._changed.emit();
  }

  private readonly _context: ISessionContext;
  private readonly _greeting: () => Greeting;
  private readonly _changed = new Signal<this, void>(this);
  private readonly _connected = new Signal<this, void>(this);
  private readonly _told = new Signal<this, Run | Input | Notice>(this);
  private readonly _waiting = new Map<number, Waiting>();
  private _kernel: Kernel.IKernelConnection | null = null;
  private _comm: Kernel.IComm | null = null;
  private _state: State | null = null;
  private _overview: Overview | null = null;
  private _heardAt = 0;
  private _activity = new Activity();
  private _asked = 0;
  private _connecting = false;
  private _running = false;
  private _patience = 0;
  private _restarted = false;
  private _disposed = false;
}

/** Waits until messages of the comm would go to a subshell, where the kernel has those: then they do not wait for cells. */
async function started(kernel: Kernel.IKernelConnection, comm: Kernel.IComm): Promise<void> {
  if (kernel.supportsSubshells) {
    const late = new Promise<void>(resolve => setTimeout(resolve, SUBSHELL_MS));
    const { subshellStarted } = comm as Kernel.IComm & { subshellStarted?: Promise<void> };
    await Promise.race([subshellStarted, late]);
  }
}
