// Which notebook's kernel is looked at: a link for each open notebook, and the one in front.
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ISignal, Signal } from '@lumino/signaling';

import { Greeting, Link } from './link';
import { Runs } from './runs';

export class Roster {
  constructor(notebooks: INotebookTracker | null, greeting: () => Greeting) {
    this._greeting = greeting;
    notebooks?.widgetAdded.connect((_, panel) => this._add(panel));
    notebooks?.currentChanged.connect((_, panel) => this._look(panel));
    notebooks?.forEach(panel => this._add(panel));
    this._look(notebooks?.currentWidget ?? null);
  }

  /** Emitted when another notebook is in front, or its kernel said something. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Of the notebook in front. */
  get current(): Link | null {
    return this._current;
  }

  forEach(work: (link: Link) => void): void {
    this._links.forEach(work);
  }

  private _add(panel: NotebookPanel): void {
    if (this._links.has(panel)) {
      return;
    }
    const link = new Link(panel.sessionContext, this._greeting);
    this._links.set(panel, link);
    const runs = new Runs(panel, link);
    link.changed.connect(() => {
      if (link === this._current) {
        this._changed.emit();
      }
    });
    panel.disposed.connect(() => {
      this._links.delete(panel);
      runs.dispose();
      link.dispose();
    });
  }

  private _look(panel: NotebookPanel | null): void {
    if (panel !== null) {
      this._add(panel);
    }
    this._current = (panel && this._links.get(panel)) ?? null;
    this._changed.emit();
  }

  private readonly _greeting: () => Greeting;
  private readonly _links = new Map<NotebookPanel, Link>();
  private readonly _changed = new Signal<this, void>(this);
  private _current: Link | null = null;
}
