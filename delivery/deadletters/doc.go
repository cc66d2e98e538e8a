// Package deadletters brings messages back that were given up.
//
// A dead letter is a message in a queue of a store, as any other, with the cause for which it is there ([store.Cause]) and its
// history. To look at dead letters and to remove them, ask the store: [store.Inspector] has List, Count and Purge. This package
// has what goes beyond one queue: [Merge] sends them back to be processed again, [Export] and [Import] make a file of JSON
// lines.
//
// After an outage of a provider is repaired, in one call:
//
//	merged, err := deadletters.Merge(ctx, s, deadletters.Config{
//		From:   "dead",
//		To:     "orders",
//		Filter: store.Filter{Provider: "bank", Since: outage.Begin, Before: outage.End},
//		Rate:   100,
//	})
//
// # Guarantees
//
// Each entry leaves the dead letters when its return is confirmed, with the same id. With [Config.To] both are one step, so
// each entry returns once, also when a merge is killed or two run at once. With [Config.Publish] an entry is published again if
// the merge is killed between the two, with the same id and number of merges. A merge that was killed is called again, and goes
// on with what is left.
//
// A merge returns what was there when it began. An entry that fails again comes back with its history and a higher number of
// merges; [Config.MaxMerges] ends that loop. An entry whose outcome is unknown stays unless [Config.OutcomeUnknown] is set: its
// call may have taken effect, and would be repeated, under another id. Where the called side still remembers the call
// (Meta.Remembered), the entry returns without that, and the call is made under the same id.
package deadletters
