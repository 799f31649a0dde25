// The panel's table of the cells that used a device last.
import React from 'react';

import * as amounts from './amounts';
import { Cell } from './protocol';
import { Texts } from './texts';

export function Cells({ cells, texts }: { cells: Cell[]; texts: Texts }): JSX.Element {
  return (
    <section>
      <h3 id="forebay-cells">{texts.say('cells')}</h3>
      {cells.length === 0 ? (
        <p className="forebay-hint">{texts.say('cells_none')}</p>
      ) : (
        <table aria-labelledby="forebay-cells">
          <thead>
            <tr>
              <th scope="col">{texts.say('cell')}</th>
              <th scope="col">{texts.say('device_time')}</th>
              <th scope="col">{texts.say('waited')}</th>
              <th scope="col">{texts.say('cost')}</th>
            </tr>
          </thead>
          <tbody>
            {cells.map((cell, index) => (
              <tr key={index}>
                <th scope="row" title={cell.first_line ?? undefined}>
                  {cell.cell === null ? texts.say('between') : `[${cell.cell}]`}
                  {cell.first_line && <code className="forebay-cell-line">{cell.first_line}</code>}
                </th>
                <td>{cell.open ? '…' : amounts.seconds(cell.device_ns)}</td>
                <td>{amounts.seconds(cell.waited_ns)}</td>
                <td>{cell.open ? '…' : amounts.cost(cell.cost, texts)}</td>
              </tr>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}
