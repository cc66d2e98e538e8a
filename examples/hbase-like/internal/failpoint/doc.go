// Package failpoint lets tests kill the process inside the write of a checkpoint.
// It needs the build tag failpoint.
package failpoint
