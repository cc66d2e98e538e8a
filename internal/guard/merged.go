package guard

import "reflect"

// Merged returns one struct of settings for those that a variadic function has got: a field has the last value that is not zero, and lists and
// maps are joined. It does not change what it gets.
func Merged[C any](configs []C) (merged C) {
	to := reflect.ValueOf(&merged).Elem()
	for i := range configs {
		from := reflect.ValueOf(&configs[i]).Elem()
		for f := range to.NumField() {
			switch has, next := to.Field(f), from.Field(f); {
			case next.IsZero():
			case next.Kind() == reflect.Slice:
				has.Set(reflect.AppendSlice(has, next))
			case next.Kind() == reflect.Map:
				if has.IsNil() {
					has.Set(reflect.MakeMap(next.Type()))
				}
				for key, value := range next.Seq2() {
					has.SetMapIndex(key, value)
				}
			default:
				has.Set(next)
			}
		}
	}
	return merged
}
