// Which notebook's kernel is looked at: a link for each open notebook, and the one in front.
import { INotebookTracker, NotebookPanel } from '@jupyterlab/notebook';
import { ISignal, Signal } from '@lumino/signaling';

import { Greeting, Link } from './link';
import { Notices } from './notices';
import { Runs } from './runs';
import { Texts } from '../text/texts';

export class OpenLinks {
  /** `show` brings a notebook to the front. */
  constructor(
    notebooks: INotebookTracker | null,
    greeting: () => Greeting,
    texts: Texts,
    show: (panel: NotebookPanel) => void
  ) {
    this._notebooks = notebooks;
    this._greeting = greeting;
    this._texts = texts;
    this._show = show;
    notebooks?.widgetAdded.connect((_, panel) => this._add(panel));
    notebooks?.currentChanged.connect((_, panel) => this._look(panel));
    notebooks?.activeCellChanged.connect(() => this._changed.emit());
    notebooks?.forEach(panel => this._add(panel));
    this._look(notebooks?.currentWidget ?? null);
  }

  /** Emitted when another notebook is in front, another cell is selected, or the kernel said something. */
  get changed(): ISignal<this, void> {
    return this._changed;
  }

  /** Of the notebook in front. */
  get current(): Link | null {
    return this._current;
  }

  /** The id of the selected cell. */
  get cell(): string | null {
    return this._notebooks?.activeCell?.model.id ?? null;
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
    const notices = new Notices(panel, link, this._texts, () => this._show(panel));
    link.changed.connect(() => {
      if (link === this._current) {
        this._changed.emit();
      }
    });
    panel.disposed.connect(() => {
      this._links.delete(panel);
      runs.dispose();
      notices.dispose();
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

  private readonly _notebooks: INotebookTracker | null;
  private readonly _greeting: () => Greeting;
  private readonly _texts: Texts;
  private readonly _show: (panel: NotebookPanel) => void;
  private readonly _links = new Map<NotebookPanel, Link>();
  private readonly _changed = new Signal<this, void>(this);
  private _current: Link | null = null;
}
