// A cell that runs, or ran, for another page: shown here as there.
import { CodeCell } from '@jupyterlab/cells';
import { IOutput } from '@jupyterlab/nbformat';
import { KernelMessage } from '@jupyterlab/services';
import { IDisposable } from '@lumino/disposable';
import { PanelLayout, Widget } from '@lumino/widgets';

import { Input, Snapshot } from '../protocol/messages';

const SHOWN = new Set(['stream', 'display_data', 'execute_result', 'error']);

export class FollowedRun implements IDisposable {
  /** `answer` takes what is typed where the cell asks for input. */
  constructor(cell: CodeCell, answer: (value: string) => void) {
    this.cellId = cell.model.id;
    this._cell = cell;
    this._answer = answer;
    this._future = cell.outputArea.future;
  }

  readonly cellId: string;

  get isDisposed(): boolean {
    return this._disposed;
  }

  /** Whether all that the cell shows is here. */
  get isOver(): boolean {
    return this._missed === null && !this._running;
  }

  dispose(): void {
    if (this._running && !this._ranAnew) {
      this._cell.model.executionState = 'idle';
    }
    this._box?.dispose();
    this._disposed = true;
  }

  /** Shows a run as it is; what came after its last message follows. */
  restore(run: Snapshot): void {
    if (this._ranAnew) {
      return;
    }
    const { model } = this._cell;
    model.trusted = true;
    model.outputs.clear();
    run.outputs.forEach(output => this._add(output));
    if (run.clears) {
      model.outputs.clear(true);
    }
    this._running = run.running;
    model.executionCount = run.running ? null : run.count;
    model.executionState = run.running ? 'running' : 'idle';
    this._count = run.count;
    const missed = this._missed ?? [];
    this._missed = null;
    missed.slice(missed.findIndex(message => message.header.msg_id === run.last) + 1).forEach(message => this.take(message));
    if (run.asks !== null) {
      this._ask(run.asks.prompt, run.asks.password);
    }
  }

  /** A message of the cell's, or another value of any display. */
  take(message: KernelMessage.IIOPubMessage): void {
    if (this._missed !== null) {
      this._missed.push(message);
      return;
    }
    if (this._ranAnew) {
      return;
    }
    const kind = message.header.msg_type;
    if (SHOWN.has(kind)) {
      this._add({ ...message.content, output_type: kind } as IOutput);
    } else if (kind === 'clear_output') {
      this._cell.model.outputs.clear((message as KernelMessage.IClearOutputMsg).content.wait);
    } else if (kind === 'update_display_data') {
      this._change(message as KernelMessage.IUpdateDisplayDataMsg);
    } else if (kind === 'status' && (message as KernelMessage.IStatusMsg).content.execution_state === 'idle') {
      this._end();
    }
  }

  /** The cell asks for input, or was answered, here or on another page. */
  asked(said: Input): void {
    this._box?.dispose();
    this._box = null;
    if (said.prompt !== undefined) {
      this._ask(said.prompt, said.password ?? false);
    } else if (said.output && this._missed === null && !this._ranAnew) {
      this._add(said.output);
    }
  }

  private _add(output: IOutput): void {
    const { outputs } = this._cell.model;
    outputs.add(output);
    const name = (output.transient as { display_id?: string } | undefined)?.display_id;
    if (name !== undefined) {
      this._displays.set(name, [...(this._displays.get(name) ?? []), outputs.length - 1]);
    }
  }

  private _change({ content }: KernelMessage.IUpdateDisplayDataMsg): void {
    for (const index of this._displays.get(content.transient.display_id ?? '') ?? []) {
      this._cell.model.outputs.set(index, { ...content, output_type: 'display_data' });
    }
  }

  private _end(): void {
    this._running = false;
    this._box?.dispose();
    this._cell.model.executionCount = this._count;
    this._cell.model.executionState = 'idle';
  }

  private _ask(prompt: string, password: boolean): void {
    const { outputArea } = this._cell;
    const future = { sendInputReply: ({ value }: { value: string }) => this._answer(value) };
    const box: Widget = outputArea.contentFactory.createStdin({ prompt, password, future, parent_header: {} } as never);
    box.addClass('jp-OutputArea-output');
    (outputArea.layout as PanelLayout).addWidget(box);
    this._box = box;
  }

  /** Whether this page has run the cell since: then it is no more ours. */
  private get _ranAnew(): boolean {
    return this._cell.isDisposed || this._cell.outputArea.future !== this._future;
  }

  private readonly _cell: CodeCell;
  private readonly _answer: (value: string) => void;
  private readonly _future: unknown;
  private readonly _displays = new Map<string, number[]>();
  /** What came before the snapshot did; null from then on. */
  private _missed: KernelMessage.IIOPubMessage[] | null = [];
  private _running = false;
  private _count = 0;
  private _box: Widget | null = null;
  private _disposed = false;
}
