// The panel's table of the cells that used a device last.
import React from 'react';

import * as amounts from '../text/amounts';
import { Cell } from '../protocol/messages';
import { Texts } from '../text/texts';

const COLUMNS = 4;

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
              <React.Fragment key={index}>
                <tr>
                  <th scope="row">{cell.cell === null ? texts.say('between') : `[${cell.cell}]`}</th>
                  <td>{cell.open ? '…' : amounts.seconds(cell.device_ns)}</td>
                  <td>{amounts.seconds(cell.waited_ns)}</td>
                  <td>{cell.open ? '…' : cell.cost_known === false ? texts.say('cost_unknown') : amounts.cost(cell.cost, texts)}</td>
                </tr>
                {cell.first_line && (
                  <tr className="forebay-cell-line">
                    <td colSpan={COLUMNS} title={cell.first_line}>
                      <code>{cell.first_line}</code>
                    </td>
                  </tr>
                )}
              </React.Fragment>
            ))}
          </tbody>
        </table>
      )}
    </section>
  );
}
