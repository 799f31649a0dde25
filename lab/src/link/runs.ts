// What cells of a notebook show that another page began, or this one before it was loaded anew: the kernel keeps it until it is saved.
import { CodeCell } from '@jupyterlab/cells';
import { NotebookPanel } from '@jupyterlab/notebook';
import { Kernel, KernelMessage } from '@jupyterlab/services';
import { JSONObject } from '@lumino/coreutils';
import { IDisposable } from '@lumino/disposable';
import { Signal } from '@lumino/signaling';

import { FollowedRun } from './followedrun';
import { Link } from './link';
import { Input, Run, Snapshot } from '../protocol/messages';

/** Types of the messages on the control channel, which the kernel answers while a cell runs. */
const REQUEST = 'forebay_request';
const ANSWER_MS = 10_000;
/** A kernel that is silent for so long computes, so it is asked at once. */
const SILENT_MS = 1000;
/** A cell that runs for so long has its notebook saved, so that a page which is opened later has the cell. */
const LONG_MS = 5000;

export class Runs implements IDisposable {
  constructor(panel: NotebookPanel, link: Link) {
    this._panel = panel;
    this._link = link;
    link.connected.connect(() => void this._catchUp());
    link.told.connect((_, said) => {
      if (said.type === 'input') {
        this._onInput(said);
      } else if (said.type !== 'notice') {
        this._onBegin(said);
      }
    });
    panel.sessionContext.iopubMessage.connect(this._onMessage, this);
    panel.sessionContext.statusChanged.connect(this._onStatus, this);
    panel.sessionContext.kernelChanged.connect(this._onKernel, this);
    panel.context.saveState.connect(this._onSave, this);
    this._onKernel();
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    this._disposed = true;
    window.clearTimeout(this._silent);
    window.clearTimeout(this._long);
    Signal.clearData(this);
  }

  private _onKernel(): void {
    this._forget();
    window.clearTimeout(this._silent);
    this._silent = window.setTimeout(() => {
      if (this._isPython()) {
        void this._catchUp();
      }
    }, SILENT_MS);
  }

  /** Whether the kernel may have our package: others log what they do not know. */
  private _isPython(): boolean {
    const { specsManager, session } = this._panel.sessionContext;
    return specsManager.specs?.kernelspecs[session?.kernel?.name ?? '']?.language === 'python';
  }

  /** Asks what there is, and shows it. */
  private async _catchUp(): Promise<void> {
    window.clearTimeout(this._silent);
    const kernel = this._link.kernel;
    if (kernel === null || this._disposed) {
      return;
    }
    try {
      await this._panel.context.ready;
      const runs = (await ask(kernel, { ask: 'runs' })) as Run[];
      for (const run of runs.filter(run => this._isForeign(run) && !this._followed.has(run.request))) {
        const followed = this._follow(run);
        const snapshot = followed && ((await ask(kernel, { ask: 'run', request: run.request })) as Snapshot | null);
        if (snapshot === null) {
          this._followed.delete(run.request);
        } else {
          followed?.restore(snapshot);
        }
      }
    } catch (error) {
      console.info('What cells showed before is not known:', error);
    }
  }

  private _isForeign(run: Run): boolean {
    return run.session !== this._link.kernel?.clientId;
  }

  private _follow(run: Run): FollowedRun | null {
    const cell = this._panel.content.widgets.find(widget => widget.model.id === run.cell_id);
    if (!(cell instanceof CodeCell)) {
      return null;
    }
    const parent = { msg_id: run.request, session: run.session } as KernelMessage.IInputReplyMsg['parent_header'];
    const answer = (value: string): void => this._link.kernel?.sendInputReply({ status: 'ok', value }, parent);
    const followed = new FollowedRun(cell, answer);
    this._forgetRunsOf(run.cell_id);
    this._followed.set(run.request, followed);
    return followed;
  }

  private _onBegin(run: Run): void {
    if (this._isForeign(run)) {
      this._follow(run)?.restore({ ...run, outputs: [], last: '', asks: null, clears: false });
      return;
    }
    this._forgetRunsOf(run.cell_id);
    window.clearTimeout(this._long);
    this._long = window.setTimeout(() => this._saveWhatIsLong(run.cell_id), LONG_MS);
  }

  private _saveWhatIsLong(cell: string): void {
    const { context, content } = this._panel;
    const found = content.widgets.find(widget => widget.model.id === cell);
    if (found instanceof CodeCell && found.model.executionState === 'running' && context.model.dirty && !context.model.readOnly) {
      void context.save();
    }
  }

  private _forgetRunsOf(cell: string): void {
    this._followed.forEach((followed, request) => {
      if (followed.cellId === cell) {
        followed.dispose();
        this._followed.delete(request);
      }
    });
  }

  private _onInput(said: Input): void {
    this._followed.get(said.request)?.asked(said);
  }

  private _onMessage(_: unknown, message: KernelMessage.IMessage): void {
    const { msg_id: request } = message.parent_header as KernelMessage.IHeader;
    this._followed.forEach((followed, name) => {
      if (name === request || message.header.msg_type === 'update_display_data') {
        followed.take(message as KernelMessage.IIOPubMessage);
      }
    });
  }

  private _onStatus(_: unknown, status: string): void {
    if (status === 'restarting' || status === 'autorestarting' || status === 'dead') {
      this._forget();
    }
  }

  private _forget(): void {
    this._followed.forEach(followed => followed.dispose());
    this._followed.clear();
    this._saved.clear();
  }

  /** What the file has, the kernel need not keep. */
  private _onSave(_: unknown, state: string): void {
    const kernel = this._link.kernel;
    if (state !== 'completed' || kernel === null || this._link.state === null) {
      return;
    }
    const own = this._panel.content.widgets.map(cell => (cell instanceof CodeCell && !isRunning(cell) ? cell.outputArea.future : null));
    const requests = own.flatMap(future => (future ? [future.msg.header.msg_id] : []));
    this._followed.forEach((followed, request) => followed.isOver && requests.push(request));
    const fresh = requests.filter(request => !this._saved.has(request));
    if (fresh.length > 0) {
      fresh.forEach(request => this._saved.add(request));
      ask(kernel, { ask: 'saved', requests: fresh }).catch(() => fresh.forEach(request => this._saved.delete(request)));
    }
  }

  private readonly _panel: NotebookPanel;
  private readonly _link: Link;
  private readonly _followed = new Map<string, FollowedRun>();
  private readonly _saved = new Set<string>();
  private _silent = 0;
  private _long = 0;
  private _disposed = false;
}

function isRunning(cell: CodeCell): boolean {
  return cell.model.executionState === 'running';
}

async function ask(kernel: Kernel.IKernelConnection, content: JSONObject): Promise<unknown> {
  const options = { msgType: REQUEST, channel: 'control', username: kernel.username, session: kernel.clientId, content };
  const message = KernelMessage.createMessage(options as never) as unknown as KernelMessage.IControlMessage;
  const future = kernel.sendControlMessage(message, true);
  const clock = setTimeout(() => future.dispose(), ANSWER_MS);
  const reply = (await future.done) as unknown as { content: { value: unknown } };
  clearTimeout(clock);
  return reply.content.value;
}
