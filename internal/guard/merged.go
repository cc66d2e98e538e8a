package guard

import "reflect"

// Merged makes one of the settings that a variadic function gets: a field counts as the last that sets it has it, and lists and maps are joined.
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
				all := reflect.MakeMap(next.Type())
				for _, m := range []reflect.Value{has, next} {
					for each := m.MapRange(); each.Next(); {
						all.SetMapIndex(each.Key(), each.Value())
					}
				}
				has.Set(all)
			default:
				has.Set(next)
			}
		}
	}
	return merged
}
