// Open the page at the address that the reader pastes, with what the old link shows.
document.querySelector("form").addEventListener("submit", event => {
	event.preventDefault()
	const secret = document.querySelector("input").value.split("#")[0].split("/").filter(Boolean).at(-1)
	if (secret) location.href = `/${encodeURIComponent(secret.trim())}/${location.hash}`
})
