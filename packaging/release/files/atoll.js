#!/usr/bin/env node
// Runs the atoll of this platform's package, and ends as it ends.
'use strict';
const {spawn} = require('node:child_process');
const os = require('node:os');

const name = `@atoll/${process.platform}-${process.arch}`;
let program;
try {
  program = require.resolve(`${name}/bin/atoll${process.platform === 'win32' ? '.exe' : ''}`);
} catch {
  console.error(`atoll: npm has not installed ${name}, which contains the program.`);
  console.error('Install without --omit=optional. If the platform is not supported, see https://github.com/seed46cd37a8/atoll');
  process.exit(1);
}

const child = spawn(program, process.argv.slice(2), {stdio: 'inherit'});
// A terminal sends its signals to atoll, too; others may send them to this process alone.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP']) {
  process.on(signal, () => process.stdin.isTTY || child.kill(signal));
}
child.on('error', (err) => {
  console.error(`atoll: cannot start ${program}: ${err.message}`);
  process.exit(1);
});
child.on('exit', (code, signal) => process.exit(signal ? 128 + os.constants.signals[signal] : code));
