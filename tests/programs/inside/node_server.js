// An HTTP server that remembers what it was told, in memory and in a file, and that always has
// work: a worker thread, a thread pool (hashing, compression, files) and garbage. Runs inside the
// sandbox.
'use strict';
const crypto = require('crypto');
const fs = require('fs');
const http = require('http');
const zlib = require('zlib');
const { Worker } = require('worker_threads');

const words = [];
const ballast = new Map();
let connections = 0;
let served = 0;

const worker = new Worker(
  `const { parentPort } = require('worker_threads');
   let sum = 0;
   parentPort.on('message', (number) => {
     const objects = [];
     for (let i = 0; i < 5000; i++) objects.push({ i, text: 'x'.repeat(i % 64) });
     sum += number + objects.length - 5000;
     parentPort.postMessage(sum);
   });`,
  { eval: true },
);

function remember(word, response) {
  words.push(word);
  fs.appendFile('/root/words', `${word}\n`, () => {
    fs.readFile('/root/words', 'utf8', (_, file) => {
      response.end(JSON.stringify({ words, file: file.trim().split('\n'), connections }));
    });
  });
}

function work(name, response) {
  const number = served++;
  ballast.set(number % 500, Buffer.alloc(10000 + (number % 7) * 5000, name));
  worker.once('message', () => {
    crypto.pbkdf2(name, 'salt', 20, 32, 'sha256', (_, key) => {
      zlib.deflate(name.repeat(200), (_, packed) => {
        response.end(JSON.stringify({ name, key: key.toString('hex'), text: zlib.inflateSync(packed).length }));
      });
    });
  });
  worker.postMessage(1);
}

// Byte i of the stream is known from i.
function stream(size, response) {
  let at = 0;
  const push = () => {
    while (at < size) {
      const piece = Buffer.alloc(Math.min(60000, size - at));
      for (let i = 0; i < piece.length; i += 4) piece.writeUInt32LE(at + i, i);
      at += piece.length;
      if (!response.write(piece)) return response.once('drain', push);
    }
    return response.end();
  };
  push();
}

const server = http.createServer((request, response) => {
  const [, kind, value] = request.url.split('/');
  if (kind === 'say') remember(value, response);
  else if (kind === 'work') work(value, response);
  else stream(Number(value), response);
});
server.on('connection', () => connections++);
server.keepAliveTimeout = server.requestTimeout = server.headersTimeout = 0;
server.listen(8080, '127.0.0.1', () => console.log('listening'));
