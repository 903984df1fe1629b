// GPT-2's tokenizer: text to ids and back. The functions have the names and the order of scripts/tied.py.
//
//	const tokenizer = readTokenizer(vocabulary, merges)  // vocab.json as an object, merges.txt as a text
//	encode("To be", tokenizer)  // ids; special tokens are read as ordinary text
//	decode(ids, tokenizer)  // a text

// Text is cut into words, each with the space before it. Tokens are parts of words. (\s has other characters
// in JavaScript than in Python, so White_Space is used.)
const WORDS =
	/'(?:s|t|re|ve|m|ll|d)| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu

// -> 256 characters. Vocabulary files write a byte as a printable character: its own, or one from 256 on. A
// space, for example, is "Ġ".
function byteCharacters() {
	const isPrintable = byte => (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174
	let next = 256
	return Array.from({length: 256}, (_, byte) => String.fromCharCode(isPrintable(byte) ? byte : next++))
}

const BYTE_CHARACTERS = byteCharacters()

// -> Map {"Ġ t": 0, "h e": 1, ...}: each pair, and its place in the order of learning
function readMerges(text) {
	const withoutVersion = text.replace(/^#version.*\n/, "")
	const lines = withoutVersion.split("\n").filter(line => line !== "")
	return new Map(lines.map((line, rank) => [line, rank]))
}

// vocabulary is what vocab.json has, merges the text of merges.txt.
export function readTokenizer(vocabulary, merges) {
	const tokenOfId = new Map(Object.entries(vocabulary).map(([token, id]) => [id, token]))
	return {vocabulary: new Map(Object.entries(vocabulary)), merges: readMerges(merges), tokenOfId}
}

// -> its tokens, written as in the vocabulary. Begin with bytes. Again and again, join the neighbours whose
// merge was learned first.
function encodeWord(word, merges) {
	let tokens = Array.from(new TextEncoder().encode(word), byte => BYTE_CHARACTERS[byte])
	for (;;) {
		const first = firstMerge(tokens, merges)
		if (first === null) return tokens
		tokens = join(tokens, first)
	}
}

// -> the pair of neighbours that was learned first, such as "h e", or null
function firstMerge(tokens, merges) {
	let first = null
	let firstRank = Infinity
	for (let i = 0; i + 1 < tokens.length; i++) {
		const pair = `${tokens[i]} ${tokens[i + 1]}`
		const rank = merges.get(pair) ?? Infinity
		if (rank < firstRank) {
			first = pair
			firstRank = rank
		}
	}
	return first
}

// -> the tokens, with each such pair as one token
function join(tokens, pair) {
	const joined = []
	for (let i = 0; i < tokens.length; i++) {
		if (`${tokens[i]} ${tokens[i + 1]}` === pair) {
			joined.push(tokens[i] + tokens[i + 1])
			i++
		} else joined.push(tokens[i])
	}
	return joined
}

// -> ids
export function encode(text, {vocabulary, merges}) {
	const words = text.match(WORDS) ?? []
	return words.flatMap(word => encodeWord(word, merges)).map(token => vocabulary.get(token))
}

// -> text
export function decode(ids, {tokenOfId}) {
	const characters = ids.map(id => tokenOfId.get(id)).join("")
	const bytes = Uint8Array.from(characters, character => BYTE_CHARACTERS.indexOf(character))
	// A token may end inside a character of the text: that part becomes "�".
	return new TextDecoder("utf-8", {ignoreBOM: true}).decode(bytes)
}

export const tokenText = (id, tokenizer) => decode([id], tokenizer)
