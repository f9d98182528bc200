// Fetches the longest stored prefix of some tokens from a kvd daemon over TCP, as bytes.
//
//   npm install
//   node fetch.js --address 127.0.0.1:9471 --token-file TOKENS --question QUESTION.json
//
// The daemon has [tcp] listen and the tenant a token_file. With TLS: --ca CA.pem, and with client
// certificates --certificate and --key too. QUESTION.json says what is asked, for example
//
//   {"keyspace": {"model": "m", "weight_revision": "r", "chain": "kvd.chain.v0", "layout": "kvd",
//                 "chunk_tokens": 64, "groups": [{"layers": 2, "tensors": [
//                   {"role": "ROLE_K", "heads": 1, "width": 64, "dtype": "DTYPE_BF16"},
//                   {"role": "ROLE_V", "heads": 1, "width": 64, "dtype": "DTYPE_BF16"}]}]},
//    "tokens": [1, 2, 3]}
//
// --out DIRECTORY keeps each strip, as lane-class-chunk.bin. A summary is printed as JSON. The exit
// code is 0 when all that was promised came and fits its table, else 1.

import fs from "node:fs";
import path from "node:path";
import { parseArgs } from "node:util";
import grpc from "@grpc/grpc-js";
import loader from "@grpc/proto-loader";
import { blake2b } from "@noble/hashes/blake2.js";

const DIGEST_BYTES = 32;
const PAGE_BYTES = 4096;
const TABLE_ENTRY_BYTES = 16;
const CELL_LENGTH_MASK = 0x0fffffff;
const DEADLINE_MS = 30_000;
const PERSON = Buffer.concat([Buffer.from("kvd.chain.v0")], 16); // Padded to what BLAKE2b takes.

const here = import.meta.dirname ?? path.dirname(new URL(import.meta.url).pathname);
const { values: options } = parseArgs({
  options: {
    address: { type: "string" },
    "token-file": { type: "string" },
    question: { type: "string" },
    ca: { type: "string" },
    certificate: { type: "string" },
    key: { type: "string" },
    out: { type: "string" },
    proto: { type: "string", default: path.join(here, "..", "..", "..", "proto") },
  },
});

/** The first line of a token file that is neither empty nor a comment. */
function firstToken(file) {
  const lines = fs.readFileSync(file, "utf8").split("\n").map((line) => line.trim());
  return lines.find((line) => line && !line.startsWith("#"));
}

function channelCredentials() {
  if (!options.ca) return grpc.credentials.createInsecure(); // Loopback only: the daemon insists.
  const read = (name) => (name ? fs.readFileSync(name) : null);
  return grpc.credentials.createSsl(read(options.ca), read(options.key), read(options.certificate));
}

function bearer(token) {
  const metadata = new grpc.Metadata();
  if (token) metadata.set("authorization", `Bearer ${token}`);
  return metadata;
}

/** The chain digest of every whole chunk: each covers all tokens before its end. */
function chainOf(tokens, chunkTokens) {
  const digests = [];
  let before = Buffer.alloc(DIGEST_BYTES);
  for (let end = chunkTokens; end <= tokens.length; end += chunkTokens) {
    const chunk = Buffer.from(Uint32Array.from(tokens.slice(end - chunkTokens, end)).buffer);
    const data = Buffer.concat([before, chunk]);
    before = Buffer.from(blake2b(data, { dkLen: DIGEST_BYTES, personalization: PERSON }));
    digests.push(before);
  }
  return Buffer.concat(digests);
}

function u32(column) {
  return Array.from({ length: column.length / 4 }, (_, n) => column.readUInt32LE(4 * n));
}

/** One call with one answer, under the session's token. */
function ask(client, method, request, token) {
  return new Promise((resolve, reject) => {
    const deadline = Date.now() + DEADLINE_MS;
    client[method](request, bearer(token), { deadline }, (error, reply) =>
      error ? reject(error) : resolve(reply),
    );
  });
}

/** Begin a session, which lives as long as the call that is returned with its welcome. */
function attach(client, token) {
  const hello = { protocol_min: 1, protocol_max: 1, features: "8", client: "kvd-example node" };
  const call = client.Attach({ hello }, bearer(token));
  return new Promise((resolve, reject) => {
    call.on("error", reject); // Once there is a welcome, of a promise that is settled already.
    call.on("data", (reply) => {
      if (reply.welcome) resolve({ call, welcome: reply.welcome });
      if (reply.notice?.draining) console.error("the daemon is draining");
    });
  });
}

/** Collect a fetch by bytes: its promise, its end, and the strips by lane-class-chunk. */
function collect(client, request, token) {
  const call = client.Fetch(request, bearer(token), { deadline: Date.now() + DEADLINE_MS });
  const got = { promise: null, done: null, strips: new Map() };
  return new Promise((resolve, reject) => {
    call.on("error", reject);
    call.on("end", () => resolve(got));
    call.on("data", ({ promise, piece, done }) => {
      if (promise) got.promise = promise;
      if (done) got.done = done;
      if (!piece) return;
      const name = `${piece.lane}-${piece.plane_class}-${piece.chunk}`;
      if (!got.strips.has(name)) got.strips.set(name, []);
      got.strips.get(name).push(piece);
    });
  });
}

/** Put the pieces of a strip together; with all layers asked for they leave no gap. */
function joined(pieces) {
  let end = 0;
  for (const piece of pieces) {
    if (piece.offset < end) throw new Error(`a piece at ${piece.offset}, behind ${end} bytes`);
    end = piece.offset + piece.data.length;
  }
  const strip = Buffer.alloc(end);
  for (const piece of pieces) piece.data.copy(strip, piece.offset);
  return strip;
}

/** Throw unless a strip is as long as its table says, and padded as long as was promised. */
function checkStrip(strip, cells, promisedBytes) {
  let end = cells * TABLE_ENTRY_BYTES;
  if (strip.length < end) throw new Error(`${strip.length} bytes hold no table of ${cells} cells`);
  for (let cell = 0; cell < cells; cell++) {
    const offset = strip.readUInt32LE(cell * TABLE_ENTRY_BYTES);
    const length = strip.readUInt32LE(cell * TABLE_ENTRY_BYTES + 4) & CELL_LENGTH_MASK;
    if (offset % 8 || offset < end) throw new Error(`cell ${cell} at ${offset}, after ${end}`);
    end = offset + length;
  }
  if (end !== strip.length) throw new Error(`a table up to ${end}, of ${strip.length} bytes`);
  const padded = Math.ceil(strip.length / PAGE_BYTES) * PAGE_BYTES;
  if (padded !== promisedBytes) throw new Error(`${padded} bytes, promised are ${promisedBytes}`);
}

/** Check every promised strip, keep it where asked to, and return how many bytes there are. */
function checkAll(got, counts, cells) {
  const sizes = u32(got.promise.lanes[0].sizes);
  let bytes = 0;
  let at = 0;
  counts.forEach((count, planeClass) => {
    for (let chunk = 0; chunk < count; chunk++) {
      const name = `0-${planeClass}-${chunk}`;
      const strip = joined(got.strips.get(name) ?? []);
      checkStrip(strip, cells, sizes[at++]);
      bytes += strip.length;
      if (options.out) fs.writeFileSync(path.join(options.out, `${name}.bin`), strip);
    }
  });
  return bytes;
}

async function main() {
  const definition = loader.loadSync("kvd/v1/kvd.proto", {
    includeDirs: [options.proto],
    keepCase: true,
    longs: String, // A lease or a reservation may pass what a Number holds exactly.
    enums: String,
    defaults: true, // A field that is 0 does not travel.
    oneofs: true,
  });
  const { Kvd } = grpc.loadPackageDefinition(definition).kvd.v1;
  const client = new Kvd(options.address, channelCredentials(), {
    // A pod or a daemon that vanished is noticed within half a minute, by either side.
    "grpc.keepalive_time_ms": 20_000,
    "grpc.keepalive_timeout_ms": 10_000,
    "grpc.keepalive_permit_without_calls": 1,
    "grpc.max_receive_message_length": 8 << 20,
  });
  const question = JSON.parse(fs.readFileSync(options.question, "utf8"));
  const token = options["token-file"] ? firstToken(options["token-file"]) : "";
  const { call, welcome } = await attach(client, token);
  try {
    const registered = await ask(
      client, "RegisterKeyspace", { keyspace: question.keyspace }, welcome.token,
    );
    const chain = chainOf(question.tokens, question.keyspace.chunk_tokens);
    const asked = { keyspace: registered.keyspace, lanes: [{}], chain };
    const found = u32((await ask(client, "Lookup", asked, welcome.token)).counts);
    const wish = { ...asked, class_count: 3, delivery: "DELIVERY_BYTES" };
    const got = await collect(client, wish, welcome.token);
    const counts = u32(got.promise.counts);
    const [group] = question.keyspace.groups;
    const cells = group.layers * group.tensors.reduce((sum, tensor) => sum + tensor.heads, 0);
    const bytes = counts[0] ? checkAll(got, counts, cells) : 0;
    if (Number(got.done.delivered_bytes) !== bytes) {
      throw new Error(`${bytes} bytes came, ${got.done.delivered_bytes} were sent`);
    }
    if (counts[0]) await ask(client, "Release", { lease: got.promise.lease }, welcome.token);
    const { daemon, session, features } = welcome;
    const chunks = chain.length / DIGEST_BYTES;
    console.log(JSON.stringify({ daemon, session, features, chunks, found, counts, bytes }));
  } finally {
    call.on("error", () => {}); // It ends cancelled, and the session with it.
    call.cancel();
    client.close();
  }
}

main().catch((error) => {
  console.error(`kvd-example: ${error.message}`);
  process.exitCode = 1;
});
