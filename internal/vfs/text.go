package vfs

import (
	"fmt"
	"strings"
)

// ByteOrderMark is U+FEFF in UTF-8, which some programs write before text.
const ByteOrderMark = "\xef\xbb\xbf"

// TextStart is how many bytes of a file [CheckText] needs.
const TextStart = 16

// CheckText checks a file that should be UTF-8 text. It returns the length of the byte
// order mark at its start, or 0. start holds the first [TextStart] bytes, or all of a
// shorter file; name is for errors. An error names the remedy for a compressed file or
// another encoding.
func CheckText(start []byte, name string) (mark int, err error) {
	found, remedy := formatOf(start)
	if found != "" {
		return 0, fmt.Errorf("%s is not UTF-8 text, but %s: %s", name, found, fmt.Sprintf(remedy, name))
	}
	if strings.HasPrefix(string(start), ByteOrderMark) {
		return len(ByteOrderMark), nil
	}
	return 0, nil
}

// formats are formats that users mistake for text, with their first bytes. UTF-32 comes
// before UTF-16, since its mark begins with the mark of UTF-16.
var formats = []struct{ start, name, remedy string }{
	{"\x1f\x8b", "compressed by gzip", decompress("gunzip -k")},
	{"\x28\xb5\x2f\xfd", "compressed by zstd", decompress("zstd -d")},
	{"\xfd7zXZ\x00", "compressed by xz", decompress("xz -dk")},
	{"BZh91AY&SY", "compressed by bzip2", decompress("bzip2 -dk")},
	{"PK\x03\x04", "a zip archive", `extract it first ("unzip %s"); Excel can save a workbook as "CSV UTF-8"`},
	{"\xff\xfe\x00\x00", "UTF-32", convert("UTF-32")},
	{"\x00\x00\xfe\xff", "UTF-32", convert("UTF-32")},
	{"\xff\xfe", "UTF-16", convert("UTF-16")},
	{"\xfe\xff", "UTF-16", convert("UTF-16")},
}

func decompress(command string) string {
	return `decompress it first ("` + command + ` %s")`
}

func convert(encoding string) string {
	return `convert it first ("iconv -f ` + encoding + ` -t UTF-8 %s")`
}

// formatOf returns a file's format if it is not UTF-8 text, and a format string with the
// remedy, which takes the path. It returns "" for text, and for a file too short to
// recognise.
func formatOf(start []byte) (name, remedy string) {
	for _, f := range formats {
		if strings.HasPrefix(string(start), f.start) {
			return f.name, f.remedy
		}
	}
	// UTF-16 without a mark: two characters of ASCII.
	if len(start) < 4 {
		return "", ""
	}
	if start[0] != 0 && start[1] == 0 && start[2] != 0 && start[3] == 0 {
		return "UTF-16 without a byte order mark", convert("UTF-16LE")
	}
	if start[0] == 0 && start[1] != 0 && start[2] == 0 && start[3] != 0 {
		return "UTF-16 without a byte order mark", convert("UTF-16BE")
	}
	return "", ""
}
