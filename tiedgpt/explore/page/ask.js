// Open the page with the secret that the reader pastes, and with what the old link shows.
document.querySelector("form").addEventListener("submit", event => {
	event.preventDefault();
	const given = document.querySelector("#address").value.split("#")[0];
	const secret = given.split("/").filter(Boolean).at(-1)?.trim();
	if (secret) location.href = `/${encodeURIComponent(secret)}/${location.hash}`;
});
