// The browser's notifications of a notebook's long cells, and the notebook's own setting of them, which its file keeps.
import { NotebookPanel } from '@jupyterlab/notebook';
import { IDisposable } from '@lumino/disposable';

import * as amounts from '../text/amounts';
import { Link } from './link';
import { Notice, NotifySetting } from '../protocol/messages';
import { Texts } from '../text/texts';

const METADATA = 'forebay_notify';
const NAMES = ['on', 'after_seconds', 'channels'] as const;

export class Notices implements IDisposable {
  /** `show` brings the notebook to the front. */
  constructor(panel: NotebookPanel, link: Link, texts: Texts, show: () => void) {
    this._panel = panel;
    this._link = link;
    this._texts = texts;
    this._show = show;
    link.connected.connect(() => (this._compared = false));
    link.changed.connect(() => this._keep());
    link.told.connect((_, said) => {
      if (said.type === 'notice') {
        this._tell(said);
      }
    });
  }

  get isDisposed(): boolean {
    return this._disposed;
  }

  dispose(): void {
    this._disposed = true;
  }

  /** A kernel that begins gets the setting of the notebook's file; after that the file gets what the kernel has. */
  private _keep(): void {
    const present = this._link.state?.notify;
    const model = this._panel.context.model;
    if (present === undefined || !this._panel.context.isReady || this._disposed) {
      return;
    }
    const kept = model.getMetadata(METADATA) as NotifySetting | undefined;
    const differs = kept === undefined ? present.on : NAMES.some(name => (kept[name] ?? false) !== (present[name] ?? false));
    if (differs && kept !== undefined && !this._compared) {
      this._link.tell({ notify: { ...kept } });
    } else if (differs) {
      model.setMetadata(METADATA, { ...present });
    }
    this._compared = true;
  }

  /** Shows it unless somebody looks at the notebook; pages that are open at the same time show one together. */
  private _tell(notice: Notice): void {
    if (typeof Notification === 'undefined' || Notification.permission !== 'granted') {
      return;
    }
    if (document.hasFocus() && this._panel.isVisible) {
      return;
    }
    const values = { cell: notice.cell, time: amounts.running(notice.seconds * 1e9), why: notice.why ?? '' };
    const { path } = this._panel.context;
    const shown = new Notification(`${path.split('/').pop()}: ${this._texts.say(`notice_${notice.kind}`, values)}`, {
      body: notice.first_line ?? '',
      tag: `forebay ${path} ${notice.cell} ${notice.kind}`,
      lang: this._texts.language
    });
    shown.onclick = () => {
      window.focus();
      this._show();
      shown.close();
    };
  }

  private readonly _panel: NotebookPanel;
  private readonly _link: Link;
  private readonly _texts: Texts;
  private readonly _show: () => void;
  private _compared = false;
  private _disposed = false;
}
