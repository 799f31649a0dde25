// Whether the user wants the line below cells: a setting of Jupyter's, told to every kernel.
import { ISettingRegistry } from '@jupyterlab/settingregistry';

import { OpenLinks } from './openlinks';

const NAME = 'line';

export class LinePreference {
  /** `loading` is absent where Jupyter keeps no settings; then the line is wanted. */
  constructor(loading: Promise<ISettingRegistry.ISettings> | undefined) {
    this._ready = (loading ?? Promise.resolve(null)).then(
      settings => (this._settings = settings),
      () => null
    );
  }

  get isWanted(): boolean {
    return this._settings?.composite[NAME] !== false;
  }

  /** Tells the kernels once the setting is loaded, and whenever it changes. */
  async tell(links: OpenLinks): Promise<void> {
    const settings = await this._ready;
    links.forEach(link => this.isWanted || link.tell({ quiet: true }));
    settings?.changed.connect(() => links.forEach(link => link.tell({ quiet: !this.isWanted })));
  }

  /** Changes the setting; the kernel of the notebook in front hears of it even where Jupyter keeps no settings. */
  async set(wanted: boolean, links: OpenLinks): Promise<void> {
    const settings = await this._ready;
    await settings?.set(NAME, wanted);
    links.current?.tell({ quiet: !wanted });
  }

  private readonly _ready: Promise<ISettingRegistry.ISettings | null>;
  private _settings: ISettingRegistry.ISettings | null = null;
}
