"""What a train function calls to hand TensorFlow data that is dealt to the ranks already."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnout.checks import refused

if TYPE_CHECKING:
    import tensorflow as tf

__all__ = ["prepare_dataset_shard"]


def prepare_dataset_shard(tf_dataset_shard: tf.data.Dataset) -> tf.data.Dataset:
    """Have TensorFlow leave a rank's share of the data as it is, where it would deal it to the ranks once more.

    Args:
        tf_dataset_shard: this rank's share, batched: of what `turnout.get_dataset_shard` gives, for example.

    Returns:
        The same data set, which is not dealt again, and is read ahead.

    Raises:
        UsageError: it is no `tf.data.Dataset`.
    """
    import tensorflow as tf

    if not isinstance(tf_dataset_shard, tf.data.Dataset):
        raise refused("prepare_dataset_shard(): tf_dataset_shard", tf_dataset_shard, "takes a tf.data.Dataset")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return tf_dataset_shard.with_options(options).prefetch(tf.data.AUTOTUNE)
