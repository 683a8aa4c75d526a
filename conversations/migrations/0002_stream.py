import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('agents', '0001_initial'),
        ('conversations', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='Stream',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uid', models.CharField(max_length=32)),
                ('turn_id', models.UUIDField()),
                ('task_pk', models.BigIntegerField(null=True)),
                ('number', models.IntegerField(help_text='1 for the first stream that its turn opened.')),
                ('take', models.IntegerField(help_text='1 for the first attempt to write it.')),
                ('chunks', models.IntegerField(help_text='How many there are; their positions begin at 0.')),
                ('role', models.CharField(max_length=9)),
                ('written_at', models.DateTimeField()),
                ('actor', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='streams', to='agents.actor')),
            ],
            options={
                'indexes': [models.Index(fields=['written_at'], name='conversations_stream_written')],
                'constraints': [models.UniqueConstraint(fields=('actor', 'uid'), name='conversations_stream_uid')],
            },
        ),
        migrations.CreateModel(
            name='StreamChunk',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('uid', models.CharField(max_length=32)),
                ('position', models.IntegerField(help_text='0 for the first.')),
                ('text', models.TextField()),
                ('actor', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='agents.actor')),
            ],
            options={
                'constraints': [models.UniqueConstraint(fields=('actor', 'uid', 'position'), name='conversations_streamchunk_position')],
            },
        ),
    ]
