// Package partitions runs a pipeline with checkpoints for each partition of an input, on
// any number of workers. When workers join, leave or die, pipelines resume at other
// workers, from their last checkpoints.
//
//	err := partitions.Run(ctx, partitions.Config{
//		Assigner: &partitions.Leases{Locks: locks, Group: "flights", Partitions: names},
//		Stores:   stores,
//		Pipeline: func(ctx context.Context, p partitions.Partition) error {
//			source := checkpoint.NewSource(p.Coordinator, "source", open(p.Name))
//			op := asyncop.OrderedWait(fn, timeout, capacity, asyncop.WithName("lookup"),
//				asyncop.WithCheckpoints(p.Coordinator), asyncop.WithContext(ctx), asyncop.WithBackend(store))
//			sink := checkpoint.NewSink(p.Coordinator, "sink", output(p.Name))
//			if err := p.Coordinator.Start(); err != nil {
//				return err
//			}
//			source.Via(op).To(sink)
//			return p.Coordinator.Wait()
//		},
//	})
//
// # Vocabulary
//
//   - A partition is a named part of the input that a single pipeline reads: a partition
//     of a topic, a file.
//   - A worker is a process that calls [Run].
//   - An [Assigner] decides which worker has which partition. [Leases] distributes them
//     with locks in a database, Group of ext/kafka with Kafka's group protocol, and
//     [Static] assigns a fixed list.
//   - An epoch is the fencing number of an assignment: it rises each time a partition is
//     assigned.
//   - [Stores] open the store of a partition for an epoch. Stores of earlier epochs are
//     fenced: they refuse to save.
//
// # Guarantees
//
// A partition has a single owner (law P1). When it is revoked, its pipeline is suspended:
// a checkpoint stores the elements in flight, and the next owner resumes from there. When
// it is lost, the context of its pipeline ends at once. If a worker detects the loss too
// late, the store refuses its checkpoints, its [checkpoint.Output] does not publish, and
// the run ends with [checkpoint.ErrFenced].
//
// So each element is in the output of its partition once. Its call may be repeated, as
// after a crash. Calls in flight end when the partition is lost, if the operators have
// ctx (asyncop.WithContext).
//
// # Failures
//
// A pipeline that fails is restarted from its last checkpoint, after a back-off of 1 s
// that doubles up to a minute. A completed checkpoint resets the back-off. A failing
// partition does not block others; its errors are logged. If an output returns
// [checkpoint.ErrFenced], the pipeline is restarted with the same epoch, and the store
// decides whether another worker has the partition.
package partitions
