package drive

import (
	"time"

	"github.com/weirflow/weir/asyncop/internal/call"
	"github.com/weirflow/weir/asyncop/internal/core"
)

// Core returns the core, for the methods of User and for tests.
func (d *Driver[IN, OUT]) Core() *core.Machine[IN, OUT] { return d.core }

// Host is for tests.
func (d *Driver[IN, OUT]) Host() *call.Host { return d.host }

// Workers is for tests.
func (d *Driver[IN, OUT]) Workers() *call.Workers[IN, OUT] { return d.workers }

// Step is for tests: it runs one step.
func (d *Driver[IN, OUT]) Step() bool { return d.step() }

// Finish is for tests.
func (d *Driver[IN, OUT]) Finish() { d.finish() }

// Pause is for tests: the duration of the last copy.
func (d *Driver[IN, OUT]) Pause() time.Duration { return d.checkpoints.pause }

// Jobs is for tests: the jobs that were not offered.
func (d *Driver[IN, OUT]) Jobs() []call.Job[IN, OUT] { return d.jobs }
