// Package failpoint lets tests kill the process inside the write of a checkpoint.
// Without the build tag failpoint it does nothing.
package failpoint
