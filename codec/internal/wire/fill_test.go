package wire

import (
	"math"
	"reflect"
	"time"

	"pgregory.net/rapid"
)

// fill draws a value, nils and empties included.
func fill(t *rapid.T, v reflect.Value, depth int) {
	small := func() int {
		if depth > 3 {
			return 0
		}
		return rapid.IntRange(0, 3).Draw(t, "length")
	}
	isNil := func() bool { return depth > 3 || rapid.Bool().Draw(t, "nil") }
	switch p := v.Addr().Interface().(type) {
	case *time.Time:
		*p = time.Unix(rapid.Int64().Draw(t, "seconds"), rapid.Int64Range(0, 999_999_999).Draw(t, "nanoseconds"))
		switch offset := rapid.IntRange(-1, 50000).Draw(t, "offset"); offset {
		case -1:
		case 0:
			*p = p.UTC()
		default:
			*p = p.In(time.FixedZone(rapid.String().Draw(t, "zone"), offset))
		}
		return
	case *point:
		*p = point{rapid.Int32().Draw(t, "x"), rapid.Int32().Draw(t, "y")}
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(rapid.Int64().Draw(t, "int"))
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(rapid.Uint64().Draw(t, "uint"))
	case reflect.Float32:
		v.SetFloat(float64(rapid.Float32().Draw(t, "float32")))
	case reflect.Float64:
		v.SetFloat(math.Float64frombits(rapid.Uint64().Draw(t, "float64")))
	case reflect.Complex64:
		v.SetComplex(complex(float64(rapid.Float32().Draw(t, "re")), float64(rapid.Float32().Draw(t, "im"))))
	case reflect.Complex128:
		v.SetComplex(complex(rapid.Float64().Draw(t, "re"), math.NaN()))
	case reflect.String:
		v.SetString(string(rapid.SliceOfN(rapid.Byte(), 0, 8).Draw(t, "string")))
	case reflect.Pointer:
		if !isNil() {
			v.Set(reflect.New(v.Type().Elem()))
			fill(t, v.Elem(), depth+1)
		}
	case reflect.Slice:
		if !isNil() {
			n := small()
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				fill(t, v.Index(i), depth+1)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i), depth+1)
		}
	case reflect.Map:
		if !isNil() {
			v.Set(reflect.MakeMap(v.Type()))
			for range small() {
				key, elem := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
				fill(t, key, depth+1)
				fill(t, elem, depth+1)
				if goodKey(key) {
					v.SetMapIndex(key, elem)
				}
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			switch {
			case f.Name == "_", f.Tag.Get("weir") == "-":
			case f.IsExported():
				fill(t, v.Field(i), depth+1)
			case f.Anonymous:
				for j := range v.Field(i).NumField() {
					fill(t, v.Field(i).Field(j), depth+1)
				}
			}
		}
	case reflect.Interface:
		if isNil() {
			return
		}
		all := implementers(v.Type())
		x := reflect.New(rapid.SampledFrom(all).Draw(t, "type").t).Elem()
		fill(t, x, depth+1)
		v.Set(x)
	}
}

// goodKey reports whether a codec takes a value as a map's key.
func goodKey(key reflect.Value) bool {
	if key.Kind() != reflect.Interface || key.IsNil() {
		return true
	}
	switch key.Elem().Interface().(type) {
	case list, *list, *inner:
		return false
	default:
		return key.Comparable()
	}
}
