// What TypeScript files import and define, told by the compiler that builds the extension: `node script_sources.cjs LAB FILE…`.
const fs = require('node:fs');
const { createRequire } = require('node:module');
const path = require('node:path');

const [lab, ...files] = process.argv.slice(2);
const ts = createRequire(path.join(path.resolve(lab), 'package.json'))('typescript');

function lineOf(source, position) {
  return source.getLineAndCharacterOfPosition(position).line;
}

function nameOf(node, source) {
  return (node.name ?? node.parent?.name)?.getText(source) ?? (ts.isConstructorDeclaration(node) ? 'constructor' : 'a function without a name');
}

function membersOf(node) {
  const methods = node.members.filter(one => ts.isFunctionLike(one));
  const parts = methods.flatMap(one => (ts.isConstructorDeclaration(one) ? one.parameters.filter(part => ts.isParameterPropertyDeclaration(part, one)) : []));
  return { methods: methods.length, members: node.members.filter(one => ts.isPropertyDeclaration(one)).length + parts.length };
}

function described(file) {
  const text = fs.readFileSync(file, 'utf8');
  const kind = file.endsWith('x') ? ts.ScriptKind.TSX : ts.ScriptKind.TS;
  const source = ts.createSourceFile(file, text, ts.ScriptTarget.Latest, true, kind);
  const found = { file, imports: ts.preProcessFile(text).importedFiles.map(one => one.fileName), functions: [], classes: [] };
  const visit = node => {
    if (ts.isFunctionLike(node) && node.body) {
      found.functions.push({ name: nameOf(node, source), lines: lineOf(source, node.end) - lineOf(source, node.getStart(source)) + 1 });
    }
    if (ts.isClassLike(node)) {
      found.classes.push({ name: nameOf(node, source), ...membersOf(node) });
    }
    ts.forEachChild(node, visit);
  };
  visit(source);
  return found;
}

process.stdout.write(JSON.stringify(files.map(described)));
