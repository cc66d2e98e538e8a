package wire

import (
	"encoding/binary"
	"math"
	"sync"
	"time"
)

// A time is written as
//
//	seconds since 1970 varint | nanoseconds uvarint | 0                                    in UTC
//	…                                               | 1 | offset varint | abbreviation      in time.Local
//	…                                               | 2 | offset varint | abbreviation | location's name
//
// The instant, the offset and the zone's abbreviation come back exactly. So does the location, if this machine has one of
// that name and agrees on the offset (it may be another machine, or have newer rules); else it is a fixed zone. The monotonic
// reading means nothing in another process and is dropped.
const (
	zoneUTC byte = iota
	zoneLocal
	zoneOther
)

func appendTime(dst []byte, t *time.Time) []byte {
	dst = binary.AppendVarint(dst, t.Unix())
	dst = binary.AppendUvarint(dst, uint64(t.Nanosecond()))
	loc := t.Location()
	if loc == time.UTC {
		return append(dst, zoneUTC)
	}
	abbreviation, offset := t.Zone()
	zone := zoneOther
	if loc == time.Local {
		zone = zoneLocal
	}
	dst = binary.AppendVarint(append(dst, zone), int64(offset))
	dst = appendString(dst, abbreviation)
	if zone == zoneOther {
		dst = appendString(dst, loc.String())
	}
	return dst
}

func (d *decoder) time() (time.Time, *Error) {
	seconds, err := d.varint()
	if err != nil {
		return time.Time{}, err
	}
	nanoseconds, err := d.uvarint()
	if err != nil {
		return time.Time{}, err
	}
	zone, err := d.byte()
	if err != nil {
		return time.Time{}, err
	}
	if nanoseconds >= 1e9 || zone > zoneOther {
		return time.Time{}, d.wrong("not a time")
	}
	t := time.Unix(seconds, int64(nanoseconds)).UTC()
	if zone == zoneUTC {
		return t, nil
	}
	offset, err := d.varint()
	if err != nil {
		return time.Time{}, err
	}
	if offset < math.MinInt32 || offset > math.MaxInt32 {
		return time.Time{}, d.wrong("not a time")
	}
	abbreviation, err := d.bytes()
	if err != nil {
		return time.Time{}, err
	}
	if zone == zoneLocal {
		return inZone(t, time.Local, string(abbreviation), int(offset)), nil
	}
	name, err := d.bytes()
	if err != nil {
		return time.Time{}, err
	}
	return inZone(t, location(string(name)), string(abbreviation), int(offset)), nil
}

// inZone returns t in loc, or in a fixed zone if loc is nil or does not agree.
func inZone(t time.Time, loc *time.Location, abbreviation string, offset int) time.Time {
	if loc != nil {
		there := t.In(loc)
		if a, o := there.Zone(); a == abbreviation && o == offset {
			return there
		}
	}
	return t.In(fixedZone(abbreviation, offset))
}

type zoneKey struct {
	name   string // of the location, or the abbreviation
	offset int    // of a fixed zone; of a location of the database: inDatabase
}

const inDatabase = math.MinInt

// zones are the locations that were met, so that a million times in one zone are one location, which is also read from the
// time zone database only once.
var zones = struct {
	sync.RWMutex
	m map[zoneKey]*time.Location
}{m: map[zoneKey]*time.Location{}}

const (
	maxZones    = 1024 // more are not kept
	maxZoneName = 64   // longer ones are not looked for
)

func location(name string) *time.Location {
	if len(name) > maxZoneName {
		return nil
	}
	return zone(zoneKey{name, inDatabase}, func() *time.Location {
		loc, err := time.LoadLocation(name) // refuses names that leave the database
		if err != nil {
			return nil
		}
		return loc
	})
}

func fixedZone(abbreviation string, offset int) *time.Location {
	return zone(zoneKey{abbreviation, offset}, func() *time.Location { return time.FixedZone(abbreviation, offset) })
}

func zone(key zoneKey, load func() *time.Location) *time.Location {
	zones.RLock()
	loc, ok := zones.m[key]
	zones.RUnlock()
	if ok {
		return loc
	}
	loc = load()
	zones.Lock()
	defer zones.Unlock()
	if len(zones.m) < maxZones && len(key.name) <= maxZoneName {
		zones.m[key] = loc
	}
	return loc
}
