package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/weirflow/weir/delivery/store"
	"github.com/weirflow/weir/internal/storearg"
)

// mustExist returns an error if a queue is unknown: see othersThan.
func mustExist(ctx context.Context, s queues, queue string) error {
	others, err := othersThan(ctx, s, queue)
	if err != nil || others == "" {
		return err
	}
	return fmt.Errorf("queue %q has no messages and no workers: the queues are %s", queue, others)
}

// othersThan returns the names of the known queues if a queue's name is probably
// mistyped: neither messages nor workers belong to it or its main queue. It returns "" if
// the queue is known, or if the database has neither queues nor workers.
func othersThan(ctx context.Context, s queues, queue string) (others string, err error) {
	first, err := s.List(ctx, queue, store.Filter{}, store.Page{Max: 1})
	if err != nil || len(first) > 0 {
		return "", err
	}
	names, err := s.Queues(ctx)
	if err != nil {
		return "", nil //nolint:nilerr // topics cannot be listed without a group
	}
	read, err := s.workersRead(ctx)
	if err != nil {
		return "", err
	}
	names = append(names, read...)
	isSame := func(name string) bool { return storearg.PartOf(name).Queue == storearg.PartOf(queue).Queue }
	if len(names) == 0 || slices.ContainsFunc(names, isSame) {
		return "", nil
	}
	return quotedNames(names), nil
}

// quotedNames returns the first names, in their order, each once.
func quotedNames(names []string) string {
	slices.Sort(names)
	names = slices.Compact(names)
	const shown = 5
	more := ""
	if len(names) > shown {
		more = fmt.Sprintf(" and %d more", len(names)-shown)
		names = names[:shown]
	}
	for i := range names {
		names[i] = strconv.Quote(names[i])
	}
	return strings.Join(names, ", ") + more
}

// isRead reports whether an empty queue is a valid target of a merge: a worker reads it,
// or the dead letters are its own.
func isRead(ctx context.Context, s queues, from, to string) (bool, error) {
	if from != to && storearg.PartOf(from).Queue == to {
		return true, nil
	}
	read, err := s.workersRead(ctx)
	return slices.Contains(read, to), err
}

// workersRead returns the queues that workers read.
func (s inspected) workersRead(ctx context.Context) (names []string, err error) {
	if !s.keeps() {
		return nil, nil
	}
	j, err := s.jobs()
	if err != nil {
		return nil, err
	}
	workers, err := j.Workers(ctx)
	if err != nil {
		return nil, nil //nolint:nilerr // the tables of jobs are missing, or the user may not read them
	}
	for _, w := range workers {
		names = append(names, w.Queues...)
	}
	return names, nil
}

// workersRead returns the group's topics.
func (k *topics) workersRead(ctx context.Context) ([]string, error) { return k.known(ctx) }
