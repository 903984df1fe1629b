// Open the page at the address that the reader pastes, with what the old link shows.
document.querySelector("form").addEventListener("submit", event => {
	event.preventDefault()
	const [pasted] = document.querySelector("input").value.split("#")
	const secret = pasted.split("/").filter(Boolean).at(-1) // the last part of the path
	if (secret) location.href = `/${encodeURIComponent(secret.trim())}/${location.hash}`
})
