// Package ottercache keeps the outcomes of lookups in a cache of
// [github.com/maypok86/otter/v2]: bounded by number or by weight, with entries that
// expire after they were written or read.
//
//	cache, err := ottercache.New(&otter.Options[int64, lookup.Entry[User]]{
//		MaximumSize:      10_000,
//		ExpiryCalculator: otter.ExpiryWriting[int64, lookup.Entry[User]](time.Minute),
//	})
//	if err != nil {
//		return err
//	}
//	users := lookup.New(asyncop.Blocking(user), cache, lookup.WithMissTTL(10*time.Second))
//
// Times that the lookup gives to its entries (lookup.WithTTL, WithMissTTL, WithErrorTTL)
// override the ExpiryCalculator for these entries.
package ottercache
