// Talks to the server over connections that stay: one for what it is told to say, some that keep
// the server busy, and one with a download that waits until it is told to go on. Runs inside the
// sandbox.
'use strict';
const crypto = require('crypto');
const http = require('http');

const STREAM_BYTES = 24_000_000;

const get = (path, agent, done) =>
  http.get({ host: '127.0.0.1', port: 8080, path, agent }, (response) => {
    let text = '';
    response.on('data', (data) => (text += data));
    response.on('end', () => done(JSON.parse(text), response.req.socket.localPort));
  });

const talk = new http.Agent({ keepAlive: true, maxSockets: 1 });
const busy = new http.Agent({ keepAlive: true, maxSockets: 6 });
const counts = { right: 0, wrong: 0 };

function work(number) {
  const name = `work-${number}`;
  get(`/work/${name}`, busy, (answer) => {
    const key = crypto.pbkdf2Sync(name, 'salt', 20, 32, 'sha256').toString('hex');
    const right = answer.name === name && answer.key === key && answer.text === name.length * 200;
    counts[right ? 'right' : 'wrong']++;
    work(number + 6);
  });
}

// Reads a part and stops: the rest waits in the server and on its way.
let download;
http.get({ host: '127.0.0.1', port: 8080, path: `/stream/${STREAM_BYTES}`, agent: false }, (response) => {
  download = response;
  download.at = 0;
  download.wrong = 0;
  download.rest = Buffer.alloc(0);
  response.on('data', (data) => {
    const bytes = Buffer.concat([download.rest, data]);
    const whole = bytes.length - (bytes.length % 4);
    for (let i = 0; i < whole; i += 4) if (bytes.readUInt32LE(i) !== download.at + i) download.wrong++;
    download.at += whole;
    download.rest = bytes.subarray(whole);
    if (!download.told) response.pause();
    if (!download.begun) console.log('ready');
    download.begun = true;
  });
});

require('readline')
  .createInterface({ input: process.stdin })
  .on('line', (line) => {
    const [command, word] = line.split(' ');
    const answer = (value) => console.log(command, JSON.stringify(value));
    if (command === 'say') {
      get(`/say/${word}`, talk, (found, port) => answer({ ...found, port }));
    } else if (command === 'counts') {
      answer(counts);
    } else if (download.complete && download.readableEnded) {
      answer([download.at + download.rest.length === STREAM_BYTES, download.wrong]);
    } else {
      download.told = true;
      download.on('end', () => answer([download.at + download.rest.length === STREAM_BYTES, download.wrong]));
      download.resume();
    }
  });
for (let number = 0; number < 6; number++) work(number);
