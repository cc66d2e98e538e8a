// Draws the live parts of a page again when the console has looked. Without it, or without a connection, pages show what was when they
// were loaded.
const events = document.currentScript.dataset.events;
if (document.querySelector("[data-live]")) {
	let drawing = false, source;
	const draw = async () => {
		if (drawing) return;
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
	// A browser has six connections for all pages of a site: one that is not seen gives its own back.
	const watch = () => {
		source?.close();
		if (document.hidden) return;
		source = new EventSource(events);
		source.onmessage = draw;
	};
	document.addEventListener("visibilitychange", watch);
	watch();
}
