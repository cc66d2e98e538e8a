// Draws the live parts of a page again when the console has looked. Without it, or without a connection, pages show what was when they
// were loaded.
const events = document.currentScript.dataset.events;
if (document.querySelector("[data-live]")) {
	let drawing = false;
	new EventSource(events).onmessage = async () => {
		if (drawing || document.hidden) return;
		drawing = true;
		try {
			const answer = await fetch(location.href);
			if (!answer.ok) return;
			const page = new DOMParser().parseFromString(await answer.text(), "text/html");
			for (const part of document.querySelectorAll("[data-live]")) {
				const now = page.getElementById(part.id);
				if (now && now.innerHTML !== part.innerHTML && !part.contains(document.activeElement)) part.innerHTML = now.innerHTML;
			}
		} catch { /* the next look tries again */ } finally { drawing = false; }
	};
}
