// Keeps the live parts of a page current, and shows in the header how old they are. Without
// this script, pages show the state at the time in their footer.
const events = document.currentScript.dataset.events;
const status = document.getElementById("live-status");

// keyOf identifies an element among its siblings, so that a table row keeps its identity
// when rows above it appear or disappear.
const keyOf = (node) => node.nodeType === Node.ELEMENT_NODE && (node.id || node.dataset.key) || "";

// morph changes the element now until it equals next. It keeps the nodes that both have, so
// the focus, the selection and open details stay.
const morph = (now, next) => {
	for (const a of [...now.attributes]) {
		const isOurs = a.name === "open" || a.name === "disabled" || a.name === "title"; // of a person, of a form that is being sent, or of a time
		if (!isOurs && !next.hasAttribute(a.name)) now.removeAttribute(a.name);
	}
	for (const a of next.attributes) {
		if (now.getAttribute(a.name) !== a.value) now.setAttribute(a.name, a.value);
	}
	const keyed = new Map([...now.children].filter(keyOf).map((e) => [keyOf(e), e]));
	let at = now.firstChild;
	for (const want of [...next.childNodes]) {
		const key = keyOf(want);
		const have = key ? keyed.get(key) : at;
		keyed.delete(key);
		if (!have || have.nodeName !== want.nodeName || keyOf(have) !== key) {
			now.insertBefore(want, at);
			continue;
		}
		if (have === at) at = at.nextSibling;
		else now.insertBefore(have, at);
		if (have.nodeType !== Node.ELEMENT_NODE) {
			if (have.data !== want.data) have.data = want.data;
		} else if (have.nodeName === "INPUT" || have.nodeName === "TEXTAREA" || have.nodeName === "SELECT") {
			continue; // it holds a person's text
		} else {
			morph(have, want);
		}
	}
	while (at) {
		const left = at;
		at = at.nextSibling;
		left.remove();
	}
};

if (document.querySelector("[data-live]")) {
	const lostAfter = 20; // seconds without a current page; the console looks every few seconds
	let drawing = false, source, drawn = Date.now(), failedAt = 0;

	const clock = (t) => new Date(t).toISOString().slice(11, 19) + "Z";
	const show = () => {
		const seconds = Math.floor((Date.now() - drawn) / 1000);
		const lost = failedAt > drawn || seconds > lostAfter;
		const text = lost ? `connection lost since ${clock(drawn)}` : `live, ${seconds} s ago`;
		status.hidden = false;
		status.classList.toggle("lost", lost);
		if (status.textContent !== text) status.textContent = text;
	};
	const draw = async () => {
		if (drawing) return;
		drawing = true;
		try {
			const answer = await fetch(location.href, { signal: AbortSignal.timeout(15000) });
			if (!answer.ok) throw new Error(answer.statusText);
			const page = new DOMParser().parseFromString(await answer.text(), "text/html");
			const focused = document.activeElement;
			for (const part of document.querySelectorAll("[data-live]")) {
				const next = page.getElementById(part.id);
				if (next) morph(part, next);
			}
			// Moving a row takes the focus from its link.
			if (focused !== document.activeElement && focused.isConnected) focused.focus({ preventScroll: true });
			drawn = Date.now();
		} catch {
			failedAt = Date.now(); // the next event draws again
		} finally {
			drawing = false;
			show();
		}
	};
	// A browser has six connections for all pages of a site, so a hidden page closes its own.
	const watch = () => {
		source?.close();
		if (document.hidden) return;
		source = new EventSource(events);
		source.onmessage = draw;
		source.onerror = () => { failedAt = Date.now(); show(); };
	};
	document.addEventListener("visibilitychange", watch);
	watch();
	show();
	setInterval(() => { if (!document.hidden) show(); }, 1000);
}

// A time shows the local time of the person.
document.addEventListener("pointerover", (e) => {
	const time = e.target.closest("time[datetime]");
	if (time) time.title = new Date(time.dateTime).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "long" });
});

// A form is sent once.
document.addEventListener("submit", (e) => setTimeout(() => e.target.querySelectorAll("button").forEach((b) => { b.disabled = true; })));
addEventListener("pageshow", () => document.querySelectorAll("button").forEach((b) => { b.disabled = false; }));
