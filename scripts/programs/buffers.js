// Uses buffers outside the JavaScript heap, workers and child processes. Usage: buffers.js [SCALE]
'use strict';
const { Worker, isMainThread, parentPort, workerData } = require('worker_threads');
const { execFileSync, fork } = require('child_process');
const crypto = require('crypto');
const zlib = require('zlib');

const scale = Number(process.argv[2] || 1);
const digest = (data) => crypto.createHash('sha256').update(data).digest('hex').slice(0, 16);

function build(seed, rounds) {
  let last = Buffer.from(String(seed));
  for (let round = 0; round < rounds; round++) {
    const buffers = [];
    for (let nth = 0; nth < 60; nth++) {
      buffers.push(Buffer.alloc(1000 * (1 + ((nth * 37) % 400)), (seed + nth + round) % 251));
    }
    last = zlib.deflateSync(Buffer.concat(buffers), { level: 1 });
    const again = zlib.inflateSync(last);
    let at = 0;
    for (const one of buffers) {
      if (again.compare(one, 0, one.length, at, at + one.length) !== 0) throw new Error('changed');
      at += one.length;
    }
  }
  const objects = Array.from({ length: 20000 }, (_, n) => ({ n, text: `text ${n * seed}` }));
  return digest(Buffer.concat([last, Buffer.from(JSON.stringify(objects))]));
}

async function main() {
  console.log('alone', build(1, 4 * scale));
  const workers = [2, 3, 4].map((seed) => new Promise((done, failed) => {
    const worker = new Worker(__filename, { workerData: seed, argv: [String(scale)] });
    worker.on('message', done);
    worker.on('error', failed);
  }));
  console.log('workers', (await Promise.all(workers)).join(' '));
  const child = fork(__filename, ['child'], { stdio: 'inherit' });
  await new Promise((done) => child.on('exit', done));
  for (let nth = 0; nth < 4; nth++) {
    console.log('said', execFileSync('sh', ['-c', `echo ${nth} | tr 0-9 a-j`]).toString().trim());
  }
}

if (!isMainThread) {
  parentPort.postMessage(build(workerData, 2 * scale));
} else if (process.argv[2] === 'child') {
  console.log('child', build(9, 1));
} else {
  main();
}
